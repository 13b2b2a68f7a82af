package main

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/edgecore-io/edgecore/pkg/trim"
)

// trimPeriod is how often the agent checks whether to return memory to the kernel; a smaller heap counts as trimHeap.
const (
	trimPeriod = time.Minute
	trimHeap   = 20 << 20
)

// pace is for devices, which have little memory: less than 50 % would cost a crowd of probes a third more time. With
// 50 % of the 5 MB that some pods need, collections would take a sixth of the time in which they start.
func pace() *trim.Pace { return &trim.Pace{Min: 50, Max: 150, Growth: 8 << 20} }

// limitMemory configures Go's runtime for a device with little memory, unless the environment (GOGC, GODEBUG) does. It
// turns off the recording of allocations, whose table takes 1.5 MB.
func limitMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(pace().Max)
	}
	if !strings.Contains(os.Getenv("GODEBUG"), "memprofilerate=") {
		runtime.MemProfileRate = 0
	}
}

// trimMemory returns memory to the kernel that the start of the agent or of many pods has left unused, and adapts the
// rate of collections to the heap, until ctx ends. wait waits for its end.
func trimMemory(ctx context.Context) (wait func()) {
	var wg sync.WaitGroup
	o := trim.Options{Every: trimPeriod, Heap: trimHeap, First: true, Program: true}
	if os.Getenv("GOGC") == "" {
		o.Pace = pace()
	}
	wg.Go(func() { trim.Run(ctx, o) })
	return wg.Wait
}
