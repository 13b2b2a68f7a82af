package cloudhub

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/wire"
)

const (
	// quicHeapHigh is the share of the memory limit, in percent, that live objects may take before QUIC gives way.
	// Below quicHeapLow, what links have carried so far is not held against them.
	quicHeapHigh = 60
	quicHeapLow  = 40
	// quicBar is how long a node whose link was ended is not taken by QUIC.
	quicBar = 10 * time.Minute
	// quicCheck is how often the heap is checked.
	quicCheck = time.Second
	// quicClose is how long to wait for ended links.
	quicClose = time.Second
)

// heapState is the memory of the process.
type heapState struct {
	// live are the bytes that the last collection has found in use, limit those that the Go runtime may use; 0: there
	// is no limit.
	live, limit int64
}

func (h heapState) over(percent int64) bool { return h.limit > 0 && h.live > h.limit/100*percent }

// readHeap reads it, without stopping the process.
func readHeap() heapState {
	samples := []runtimemetrics.Sample{{Name: "/gc/heap/live:bytes"}}
	runtimemetrics.Read(samples)
	h := heapState{live: int64(samples[0].Value.Uint64())}
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
		h.limit = limit
	}
	return h
}

// collectHeap collects garbage, and reads what is left.
func collectHeap() heapState {
	runtime.GC()
	return readHeap()
}

// quicGuard makes QUIC give way to everything else when memory is short. wire counts what nodes have sent and nobody
// has read, but not all that the QUIC library may be made to keep, such as what a node does not acknowledge. What it
// keeps has come or gone over a link, so those links end first that have carried most since memory was not short.
// Their nodes use WebSocket, which keeps such data in the kernel, within its limits.
type quicGuard struct {
	listener *wire.QUICListener
	// collect collects garbage, and reads what is left.
	collect func() heapState
	// carried is what links had carried when memory was not short last.
	carried map[*session]int64
}

// guardQUIC watches the heap until the context ends.
func (h *Hub) guardQUIC(ctx context.Context, l *wire.QUICListener) {
	tick := time.NewTicker(quicCheck)
	defer tick.Stop()
	g := quicGuard{listener: l, collect: collectHeap}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			h.relieve(ctx, &g, readHeap())
		}
	}
}

// relieve ends links while live objects take too much: one, then two, four and so on. No link is taken meanwhile.
func (h *Hub) relieve(ctx context.Context, g *quicGuard, state heapState) {
	if state.limit == 0 {
		return
	}
	if !state.over(quicHeapLow) {
		g.carried = map[*session]int64{}
		for _, s := range h.quicSessions() {
			g.carried[s] = carried(s)
		}
	}
	for n := 1; state.over(quicHeapHigh) && ctx.Err() == nil; n *= 2 {
		g.listener.Pause(true)
		links := h.quicSessions()
		since := func(s *session) int64 { return carried(s) - g.carried[s] }
		slices.SortFunc(links, func(a, b *session) int { return cmp.Compare(since(b), since(a)) })
		links = links[:min(n, len(links))]
		if len(links) == 0 {
			break // something else takes the memory
		}
		h.bar(links, state)
		state = g.collect()
	}
	g.listener.Pause(state.over(quicHeapHigh))
}

// quicSessions returns the sessions over QUIC that have not ended.
func (h *Hub) quicSessions() []*session {
	return slices.DeleteFunc(h.allSessions(), func(s *session) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.ended || s.conn.Protocol() != wire.ProtocolQUIC
	})
}

// carried returns the bytes that went over a link, in both directions.
func carried(s *session) int64 {
	stats := s.conn.Stats()
	return stats.BytesSent + stats.BytesReceived
}

// bar ends links, and refuses their nodes by QUIC for a while.
func (h *Hub) bar(links []*session, state heapState) {
	now := time.Now()
	h.mu.Lock()
	if h.barred == nil {
		h.barred = map[string]time.Time{}
	}
	for node, until := range h.barred {
		if now.After(until) {
			delete(h.barred, node)
		}
	}
	for _, s := range links {
		h.barred[s.node] = now.Add(quicBar)
	}
	h.mu.Unlock()
	deadline := time.NewTimer(quicClose)
	defer deadline.Stop()
	for _, s := range links {
		klog.InfoS("Memory is short: ended the QUIC link that carried most. The node uses WebSocket for a while. If "+
			"it happens again, give cloudcore more memory, or set modules.cloudHub.quic.enable to false",
			"node", s.node, "liveHeap", state.live, "memoryLimit", state.limit, "notByQUICFor", quicBar)
		h.metrics.shed.Inc()
		s.closeLink(wire.CloseTryLater, "cloudcore is short of memory: connect by WebSocket")
	}
	for _, s := range links {
		select {
		case <-s.closed:
		case <-deadline.C:
			return
		}
	}
}

// quicBarred returns why a node is not taken by QUIC now, or nil.
func (h *Hub) quicBarred(node string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if until, ok := h.barred[node]; ok && time.Now().Before(until) {
		return fmt.Errorf("cloudcore was short of memory, and takes node %s by QUIC again at %s", node,
			until.UTC().Format(time.RFC3339))
	}
	return nil
}
