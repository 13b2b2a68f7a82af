// Package trim gives memory back that a program needed for a while and needs no more. Go would do it by and by, and
// only after collections, of which there are few in a program at rest.
package trim

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"k8s.io/klog/v2"
)

// above is the part of the live heap that may lie idle before it is given back.
const above = 0.15

// Options say when memory is given back.
type Options struct {
	// Every is how often the heap is looked at, which takes microseconds.
	Every time.Duration
	// Heap is the size of a heap, in bytes, below which all count as this large.
	Heap uint64
	// First has the first look give back whatever there is: the start is over then.
	First bool
}

// Run gives memory back until ctx ends.
func Run(ctx context.Context, opts Options) {
	tick := time.NewTicker(opts.Every)
	defer tick.Stop()
	samples := []metrics.Sample{{Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/gc/heap/live:bytes"}}
	for first := opts.First; ; first = false {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		metrics.Read(samples)
		free, objects, live := samples[0].Value.Uint64(), samples[1].Value.Uint64(), samples[2].Value.Uint64()
		if !first && !worth(free, objects, live, opts.Heap) {
			continue
		}
		debug.FreeOSMemory()
		klog.V(3).InfoS("Gave memory back", "idle", free, "garbage", objects-min(live, objects))
	}
}

// worth reports whether enough lies idle, or is garbage, to be worth a collection. All in bytes: idle is the heap that
// could be given back, objects what the rest holds, live what it held after the last collection.
func worth(idle, objects, live, heap uint64) bool {
	garbage := objects - min(live, objects)
	return float64(idle+garbage) > above*float64(max(live, heap))
}
