package main

import (
	"context"
	"sync"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/node/node"
	"github.com/edgecore-io/edgecore/pkg/footprint"
)

const (
	// gcPercent trades a little processor time for memory, which is scarcer on small devices. Half of it would cost a
	// crowd of probes a third more time; three times as much takes a tenth less processor time while pods start, and 4
	// MB.
	gcPercent = 50
	// trimPeriod is how often the agent checks whether to return memory to the kernel; a smaller heap counts as
	// trimHeap. With 30 pods, an idle agent has 0.7 MB to return after half a minute; that takes 10 ms.
	trimPeriod = 30 * time.Second
	trimHeap   = 4 << 20
	// processors is how many threads may run Go code at once. What Go keeps for each takes up to 1 MB. With one, 30
	// pods start 4 % later with 8 % less processor time. How fast pods start depends on the container runtime, not on
	// the agent, so it needs no more than two.
	processors = 2
	// monitorSlack is how much later than usual Go's runtime may notice that a goroutine is blocked in a system call or
	// that a timer is due. While 30 pods start and are deleted, it saves a quarter of the agent's processor time.
	monitorSlack = 5 * time.Millisecond
)

// tuneRuntime configures Go's runtime for a device with little memory and a slow processor.
func tuneRuntime() {
	if err := footprint.SetSlack(monitorSlack); err != nil {
		klog.V(2).InfoS("The agent takes more processor time than it needs to", "err", err)
	}
	footprint.Tune(footprint.Tuning{GCPercent: gcPercent, Processors: processors})
	if !footprint.Off() {
		packets.TPacketData = nil // what the MQTT library tests itself with; it takes 0.36 MB
	}
}

// trimMemory returns memory to the kernel that the start of the agent or of many pods has left unused, until ctx ends.
// wait waits for its end.
func trimMemory(ctx context.Context) (wait func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		footprint.Trim(ctx, footprint.TrimOptions{Every: trimPeriod, Heap: trimHeap, First: true, File: true})
	})
	return wg.Wait
}

// memory returns the memory of the device, in bytes; 0 if it is unknown, which means the limits of a small device.
func memory() int64 {
	bytes, err := node.Memory()
	if err != nil {
		klog.ErrorS(err, "Memory of the device unknown; taking it for a small one")
	}
	return bytes
}
