package cloudhub

import (
	"context"
	"crypto/tls"
	"math"
	"runtime/debug"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestQUICGuard(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	low, high := heapState{live: 599, limit: 1000}, heapState{live: 601, limit: 1000}
	after := func(h heapState, cycles uint64) heapState { h.cycles = cycles; return h }
	var g quicGuard
	for i, step := range []struct {
		heap       heapState
		after      time.Duration
		end, pause bool
	}{
		{heapState{live: 1 << 40}, 0, false, false}, // no limit
		{low, 0, false, false},
		{high, time.Second, true, true},
		{high, 2 * time.Second, false, true}, // what was ended is not collected yet
		{after(high, 1), 3 * time.Second, false, true},
		{after(high, 2), 4 * time.Second, true, true},
		{after(low, 4), 5 * time.Second, false, true},
		{after(low, 9), 4*time.Second + quicPause - 1, false, true},
		{after(low, 9), 4*time.Second + quicPause, false, false},
		{after(high, 9), time.Hour, true, true},
	} {
		end, pause := g.check(step.heap, begin.Add(step.after))
		if end != step.end || pause != step.pause {
			t.Errorf("step %d: ends links: %t, refuses new ones: %t; want %t and %t", i, end, pause, step.end,
				step.pause)
		}
	}
}

// TestReadHeap: what is kept counts, and so does a limit.
func TestReadHeap(t *testing.T) {
	kept := make([]byte, 64<<20)
	debug.FreeOSMemory() // collects
	before := debug.SetMemoryLimit(1 << 30)
	got := readHeap()
	debug.SetMemoryLimit(before)
	if got.live < 64<<20 || got.cycles == 0 || got.limit != 1<<30 {
		t.Errorf("heap = %+v, want 64 MiB live at least, a collection, and a limit of 1 GiB", got)
	}
	if got := readHeap(); before == math.MaxInt64 && got.limit != 0 {
		t.Errorf("without a limit, the limit is %d, want 0", got.limit)
	}
	kept[0] = 1
}

// TestQUICGivesWay: while memory is short, the link that carried most ends, the other one stays, and no more are taken
// by QUIC. A WebSocket is taken all the while.
func TestQUICGivesWay(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	c := startCloud(t, func(o *Options) { o.Registry = registry })
	server := c.ca.Server(t)
	l, err := c.hub.ListenQUIC("127.0.0.1:0", TLSConfig(func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return &server, nil
	}, c.ca.Pool()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.hub.ServeQUIC(ctx, l) }()
	defer func() {
		cancel()
		<-done
	}()
	dial := func(node string) (wire.Conn, error) {
		opts := c.options(node, c.ca.Node(t, node, time.Now().Add(time.Hour)))
		opts.URL = "https://" + l.Addr().String()
		opts.HandshakeTimeout = 5 * time.Second
		return wire.DialQUIC(t.Context(), opts)
	}
	join := func(node string) *edge {
		conn, err := dial(node)
		if err != nil {
			t.Fatal(err)
		}
		e := newEdge(t, node).over(conn)
		wait.True(t, "the answer to the inventory", e.isSynced)
		return e
	}
	busy, quiet := join("n1"), join("n2")
	for range 100 {
		c.cluster.set("n1", "default/pod/web", "u", "a")
		settled(t, c, busy)
	}
	var g quicGuard
	now := time.Now()
	c.hub.relieve(&g, l, heapState{live: 700, limit: 1000}, now)
	if err := busy.waitEnd(); err == nil {
		t.Error("the link that carried most has ended without an error, want one")
	}
	if n := gather(t, registry)["quic_shed_total"]; n != 1 {
		t.Errorf("%v links were ended, want 1", n)
	}
	if _, err := dial("n3"); err == nil {
		t.Error("a link was taken by QUIC while memory is short, want none")
	}
	newEdge(t, "n1").dialOurs(c)
	wait.True(t, "the link by WebSocket", func() bool {
		s := c.hub.session("n1")
		return s != nil && s.protocol() == "edgecore/websocket"
	})
	c.cluster.set("n2", "default/pod/web", "u", "b")
	settled(t, c, quiet)
	c.hub.relieve(&g, l, heapState{live: 100, limit: 1000}, now.Add(quicPause))
	join("n3")
}
