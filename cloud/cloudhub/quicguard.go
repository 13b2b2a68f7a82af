package cloudhub

import (
	"context"
	"math"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/wire"
)

const (
	// quicHeapMax is the share of the memory limit, in percent, that live objects may take before QUIC gives way.
	quicHeapMax = 60
	// quicPause is how long no connection is taken by QUIC after that.
	quicPause = 10 * time.Minute
	// quicCycles is how many collections pass until connections are ended once more: what the last ones held is free
	// then.
	quicCycles = 2
	// quicCheck is how often the heap is checked.
	quicCheck = time.Second
)

// heapState is the memory of the process.
type heapState struct {
	// live are the bytes that the last collection has found in use, limit those that the Go runtime may use; 0: there
	// is no limit.
	live, limit int64
	// cycles is how many collections there were.
	cycles uint64
}

// readHeap reads it, without stopping the process.
func readHeap() heapState {
	samples := []runtimemetrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/cycles/total:gc-cycles"}}
	runtimemetrics.Read(samples)
	h := heapState{live: int64(samples[0].Value.Uint64()), cycles: samples[1].Value.Uint64()}
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
		h.limit = limit
	}
	return h
}

// quicGuard decides when QUIC has to give way to everything else, because memory is short. wire counts what nodes have
// sent and nobody has read, but not all that the QUIC library may be made to keep, such as what a node does not
// acknowledge. Nodes whose links end use WebSocket, which keeps such data in the kernel, within its limits.
type quicGuard struct {
	until time.Time
	// ended is set once links were ended, and cycle is the collection in which they were last.
	ended bool
	cycle uint64
}

// check reports whether to end links now, and whether to refuse new ones.
func (g *quicGuard) check(h heapState, now time.Time) (end, pause bool) {
	if h.limit > 0 && h.live > h.limit/100*quicHeapMax {
		g.until = now.Add(quicPause)
		end = !g.ended || h.cycles >= g.cycle+quicCycles
	}
	if end {
		g.ended, g.cycle = true, h.cycles
	}
	return end, now.Before(g.until)
}

// guardQUIC watches the heap until the context ends.
func (h *Hub) guardQUIC(ctx context.Context, l *wire.QUICListener) {
	tick := time.NewTicker(quicCheck)
	defer tick.Stop()
	var g quicGuard
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			h.relieve(&g, l, readHeap(), now)
		}
	}
}

// relieve does what the guard decides.
func (h *Hub) relieve(g *quicGuard, l *wire.QUICListener, state heapState, now time.Time) {
	end, pause := g.check(state, now)
	l.Pause(pause)
	if !end {
		return
	}
	n := l.Shed()
	h.metrics.shed.Add(float64(n))
	klog.InfoS("Memory is short: ended the QUIC links that carried most, and take no more by QUIC for a while. "+
		"Their nodes use WebSocket. If it happens again, give cloudcore more memory, or set "+
		"modules.cloudHub.quic.enable to false",
		"links", n, "liveHeap", state.live, "memoryLimit", state.limit, "pause", quicPause)
}
