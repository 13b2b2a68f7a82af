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

const (
	// gcPercent trades a little time for memory, of which small devices have less. Half of it would cost a crowd of
	// probes a third more time.
	gcPercent = 50
	// trimPeriod is how often the agent looks whether it has memory to give back, of a heap that counts as trimHeap at
	// least.
	trimPeriod = time.Minute
	trimHeap   = 20 << 20
)

// limitMemory sets up Go's runtime for a device with little memory, unless the environment (GOGC, GODEBUG) says
// otherwise. It does not record where memory is allocated: the table for that takes 1.5 MB.
func limitMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if !strings.Contains(os.Getenv("GODEBUG"), "memprofilerate=") {
		runtime.MemProfileRate = 0
	}
}

// trimMemory gives memory back that the start or a crowd of pods has left behind. What it returns waits for its end,
// with ctx.
func trimMemory(ctx context.Context) (wait func()) {
	var wg sync.WaitGroup
	wg.Go(func() { trim.Run(ctx, trim.Options{Every: trimPeriod, Heap: trimHeap, First: true}) })
	return wg.Wait
}
