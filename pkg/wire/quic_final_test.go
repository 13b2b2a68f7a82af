package wire

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/shares"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// final is a stream whose peer ends its direction when the test says so.
type final struct{ called func(int64) }

func (f *final) SetReceiveFinalSizeCallback(called func(int64)) { f.called = called }

// TestEnding: a stream counts until it was closed, the node has ended its direction and has acknowledged the reset, in
// any order; a node that keeps it open loses the link, unless it cannot be heard.
func TestEnding(t *testing.T) {
	type steps struct {
		*ending
		final func(int64)
		// hear waits, and lets the node be heard meanwhile.
		hear   func(time.Duration)
		unlink func()
		// unacknowledged: the node does not acknowledge a reset.
		unacknowledged *atomic.Bool
	}
	overdue := 4 * finalWait
	for name, tc := range map[string]struct {
		does    func(s steps)
		freed   int
		overdue bool
	}{
		"only closed":            {func(s steps) { s.closed(true) }, 0, false},
		"only ended by the node": {func(s steps) { s.final(7); s.acked(true) }, 0, false},
		"not acknowledged":       {func(s steps) { s.closed(true); s.final(7) }, 0, false},
		"not ended by the node":  {func(s steps) { s.closed(true); s.acked(true) }, 0, false},
		"closed, ended, acked":   {func(s steps) { s.closed(true); s.final(7); s.acked(true) }, 1, false},
		"acked, ended, closed":   {func(s steps) { s.acked(true); s.final(7); s.closed(true) }, 1, false},
		"freed once": {func(s steps) {
			s.final(7)
			s.closed(true)
			s.acked(true)
			s.acked(false)
			s.acked(true)
		}, 1, false},
		"the reset is sent again": {func(s steps) {
			s.closed(true)
			s.acked(true)
			s.acked(false)
			s.final(7)
		}, 0, false},
		"kept open by a node":         {func(s steps) { s.closed(true); s.acked(true); s.hear(overdue) }, 0, true},
		"not acknowledged for long":   {func(s steps) { s.closed(true); s.final(7); s.hear(overdue) }, 0, true},
		"ended, but not acknowledged": {func(s steps) { s.final(7); s.closed(true); s.hear(overdue) }, 0, true},
		"no reset for a while":        {func(s steps) { s.final(7); s.closed(false); s.hear(finalWait) }, 1, false},
		"a reset that is not acknowledged": {func(s steps) {
			s.unacknowledged.Store(true)
			s.final(7)
			s.closed(false)
			s.hear(overdue)
		}, 0, true},
		"outage, then ended": {func(s steps) {
			s.closed(true)
			time.Sleep(10 * finalWait)
			s.hear(finalWait / 2)
			s.final(7)
			s.acked(true)
			time.Sleep(10 * finalWait)
		}, 1, false},
		"the link ends": {func(s steps) { s.closed(true); s.unlink(); s.hear(overdue) }, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				link, cut := context.WithCancel(t.Context())
				var heard atomic.Int64
				freed, overdue := 0, error(nil)
				e := &ending{
					link: link, heard: heard.Load,
					freed: func() { freed++ }, overdue: func(err error) { overdue = err },
				}
				var f final
				var unacknowledged atomic.Bool
				e.reset = func() { e.acked(!unacknowledged.Load()) }
				e.follow(&f)
				hear := func(d time.Duration) {
					for ; d > 0; d -= finalWait / 2 {
						time.Sleep(finalWait / 2)
						heard.Add(1)
					}
				}
				tc.does(steps{
					ending: e, final: f.called, hear: hear, unlink: cut, unacknowledged: &unacknowledged,
				})
				synctest.Wait()
				if freed != tc.freed || (overdue != nil) != tc.overdue {
					t.Errorf("freed %d times, overdue: %v; want %d and %t", freed, overdue, tc.freed, tc.overdue)
				}
				cut()
			})
		})
	}
}

// TestQUICStreamKept: a stream that the cloud has closed counts until the node has ended its direction. Our node's QUIC
// does so on its own; it is asked to by the reset.
func TestQUICStreamKept(t *testing.T) {
	edge, far := linkWithStreams(t)
	cloud, node := openStream(t, edge, far)
	if n := far.Streams().open.Load(); n != 1 {
		t.Errorf("%d streams are open, want 1", n)
	}
	if _, err := node.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	_ = cloud.Close()
	wait.Until(t, "the node to end its direction", func() error {
		if far.Streams().open.Load() != 0 {
			return errors.New("the stream counts as open")
		}
		return nil
	})
	if _, err := node.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("Read = %v, want that the stream was reset", err)
	}
}

// TestQUICStreamUnacknowledged: the unread data of a stream that both ends have closed counts until the node has
// acknowledged the reset, because QUIC keeps it until then.
func TestQUICStreamUnacknowledged(t *testing.T) {
	m := shares.NewMemoryOf(32<<20, 16<<20)
	server := newQUICCloudOf(t, m, letAll(AcceptOptions{Limits: patient, Features: Features{Tunnel: true}}))
	proxy := wiretest.NewUDPProxy(t, server.addr)
	edge, far := server.pair(server.options(proxy.Addr(), Features{Tunnel: true}))
	cloud, node := openStream(t, edge, far)
	if _, err := node.Write(make([]byte, 50<<10)); err != nil {
		t.Fatal(err)
	}
	wait.True(t, "the unread data to be counted", func() bool { return m.Taken() > 50<<10 })

	proxy.Deafen(true)
	up, _ := reading(far)
	_, _ = cloud.Close(), node.Close()
	if err := edge.Write(model.New("", "", "after", "insert", nil)); err != nil {
		t.Fatal(err)
	}
	wait.Receive(t, "a message that the node has sent after it has ended the stream", up)
	if open, taken := far.Streams().open.Load(), m.Taken(); open != 1 || taken < 50<<10 {
		t.Errorf("before the node hears of the reset, %d streams are open and %d bytes are counted, want the stream's",
			open, taken)
	}
	proxy.Deafen(false)
	wait.True(t, "the stream to be given up", func() bool { return far.Streams().open.Load() == 0 && m.Taken() == 0 })
}

// TestQUICStreamOverdue: both ends of a link report that it ended because the node keeps a closed stream open.
func TestQUICStreamOverdue(t *testing.T) {
	edge, far := linkWithStreams(t)
	_, ended := reading(far)
	_, told := reading(edge)
	far.Streams().end(errUnended)
	if err := wait.Receive(t, "the cloud's end", ended); !errors.Is(err, errUnended) {
		t.Errorf("the link ends with %v, want %v", err, errUnended)
	}
	var closed *Closed
	err := wait.Receive(t, "the node's end", told)
	if !errors.As(err, &closed) || closed.Reason != errUnended.Error() {
		t.Errorf("the node is told %v, want the reason %q", err, errUnended)
	}
}
