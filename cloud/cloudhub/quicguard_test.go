package cloudhub

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestReadHeap: what is kept counts, and so does a limit.
func TestReadHeap(t *testing.T) {
	kept := make([]byte, 64<<20)
	before := debug.SetMemoryLimit(1 << 30)
	got := collectHeap()
	debug.SetMemoryLimit(before)
	if got.live < 64<<20 || got.limit != 1<<30 {
		t.Errorf("heap = %+v, want 64 MiB live at least, and a limit of 1 GiB", got)
	}
	if got := readHeap(); before == math.MaxInt64 && got.limit != 0 {
		t.Errorf("without a limit, the limit is %d, want 0", got.limit)
	}
	kept[0] = 1
}

// TestQUICGivesWay: when memory is short, the link ends that carried most since it was not, and its node is taken by
// WebSocket alone; more links end until there is memory.
func TestQUICGivesWay(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	c := startCloud(t, func(o *Options) { o.Registry = registry })
	l := listenQUIC(t, c)
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
	old, busy, quiet := join("n1"), join("n2"), join("n3")
	change := func(e *edge, times int) {
		for i := range times {
			c.cluster.set(e.node, "default/pod/web", "u", fmt.Sprint(times, i))
			settled(t, c, e)
		}
	}
	high, low := heapState{live: 700, limit: 1000}, heapState{live: 300, limit: 1000}
	states := []heapState{high, low}
	g := &quicGuard{listener: l, collect: func() heapState {
		next := states[0]
		states = states[1:]
		return next
	}}
	// The oldest link has carried most, but not lately.
	change(old, 100)
	c.hub.relieve(ctx, g, low)
	change(busy, 20)
	change(quiet, 1)
	states = []heapState{low}
	c.hub.relieve(ctx, g, high)
	if err := busy.waitEnd(); err == nil {
		t.Error("the link that carried most since memory was not short has ended without an error, want one")
	}
	if n := gather(t, registry)["quic_shed_total"]; n != 1 {
		t.Errorf("%v links were ended, want 1", n)
	}
	var refused *wire.Refused
	if _, err := dial("n2"); !errors.As(err, &refused) || !strings.Contains(refused.Text, "by QUIC again at") {
		t.Errorf("its node is taken by QUIC again: %v, want a refusal", err)
	}
	newEdge(t, "n2").dialOurs(c)
	wait.True(t, "the link by WebSocket", func() bool {
		s := c.hub.session("n2")
		return s != nil && s.protocol() == "edgecore/websocket"
	})
	another := join("n4")
	change(quiet, 2)
	change(old, 2)
	// It is not enough: one link, then two more, and none is left.
	states = []heapState{high, high}
	c.hub.relieve(ctx, g, high)
	for _, e := range []*edge{old, quiet, another} {
		if err := e.waitEnd(); err == nil {
			t.Errorf("the link of %s has ended without an error, want one", e.node)
		}
	}
	if _, err := dial("n5"); err == nil {
		t.Error("a link was taken by QUIC while memory is short, want none")
	}
	c.hub.relieve(ctx, g, low)
	join("n5")
}
