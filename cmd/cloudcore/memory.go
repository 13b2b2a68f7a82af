package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"k8s.io/klog/v2"
)

const (
	// trimEvery is how often the heap is looked at.
	trimEvery = 30 * time.Second
	// trimAbove is the part of the live heap that may lie idle before it is given back.
	trimAbove = 0.15
)

// trimMemory gives memory back that a storm of edges has left behind, until ctx ends. Go would do it by and by, and only
// after collections, of which there are few among links at rest.
func trimMemory(ctx context.Context) {
	tick := time.NewTicker(trimEvery)
	defer tick.Stop()
	samples := []metrics.Sample{{Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"}}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		metrics.Read(samples)
		free, objects, live := samples[0].Value.Uint64(), samples[1].Value.Uint64(), samples[2].Value.Uint64()
		if !worthTrimming(free, objects, live) {
			continue
		}
		debug.FreeOSMemory()
		klog.V(2).InfoS("Gave memory back", "idle", free, "garbage", objects-min(live, objects))
	}
}

// worthTrimming tells whether enough lies idle, or is garbage, to be worth a collection. All in bytes: idle is the
// heap that could be given back, objects what the rest holds, live what it held after the last collection.
func worthTrimming(idle, objects, live uint64) bool {
	garbage := objects - min(live, objects)
	return float64(idle+garbage) > trimAbove*float64(max(live, 64<<20))
}
