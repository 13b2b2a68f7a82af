package footprint

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"k8s.io/klog/v2"
)

// above is the part of the live heap that may be idle before it is returned.
const above = 0.15

// TrimOptions say when memory is returned.
type TrimOptions struct {
	// Every is how often the heap is checked, which takes microseconds.
	Every time.Duration
	// Heap is the minimum heap size, in bytes, to assume.
	Heap uint64
	// First makes the first check return all idle memory: startup is over then.
	First bool
	// File also unmaps the pages of the program's own file; see unmapFile.
	File bool
}

// Trim returns memory to the system that the program no longer needs, until ctx ends. Go would do so slowly, and only
// after collections, which are rare in an idle program. Trim returns at once if the package is switched off.
func Trim(ctx context.Context, opts TrimOptions) {
	if Off() {
		return
	}
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
		if !first && !isWorthwhile(free, objects, live, opts.Heap) {
			continue
		}
		debug.FreeOSMemory()
		if opts.File {
			if err := unmapFile(); err != nil {
				klog.V(2).InfoS("Pages of the program's file stay resident", "err", err)
			}
		}
		klog.V(3).InfoS("Gave memory back", "idle", free, "garbage", objects-min(live, objects))
	}
}

// isWorthwhile reports whether enough memory is idle or garbage to be worth a collection. All in bytes: idle is the
// heap that could be returned, objects what the rest holds, live what it held after the last collection.
func isWorthwhile(idle, objects, live, heap uint64) bool {
	garbage := objects - min(live, objects)
	return float64(idle+garbage) > above*float64(max(live, heap))
}
