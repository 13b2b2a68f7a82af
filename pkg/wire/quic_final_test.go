package wire

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// final is a stream whose peer ends its direction when the test says so.
type final struct{ called func(int64) }

func (f *final) SetReceiveFinalSizeCallback(called func(int64)) { f.called = called }

// TestEnding: a stream counts until both directions have ended, whichever is first; a node that keeps its direction
// open loses the link, unless it cannot be heard.
func TestEnding(t *testing.T) {
	for name, tc := range map[string]struct {
		does    func(f *final, closed func(), heard *atomic.Int64, cut func())
		freed   int
		overdue bool
	}{
		"only closed":            {func(_ *final, closed func(), _ *atomic.Int64, _ func()) { closed() }, 0, false},
		"only ended by the node": {func(f *final, _ func(), _ *atomic.Int64, _ func()) { f.called(7) }, 0, false},
		"closed, then ended": {func(f *final, closed func(), _ *atomic.Int64, _ func()) {
			closed()
			f.called(7)
		}, 1, false},
		"ended, then closed": {func(f *final, closed func(), _ *atomic.Int64, _ func()) {
			f.called(7)
			closed()
		}, 1, false},
		"kept open by a node": {func(_ *final, closed func(), heard *atomic.Int64, _ func()) {
			closed()
			for range 6 {
				time.Sleep(finalWait / 2)
				heard.Add(1)
			}
		}, 0, true},
		"outage, then ended": {func(f *final, closed func(), heard *atomic.Int64, _ func()) {
			closed()
			time.Sleep(10 * finalWait)
			heard.Add(1)
			time.Sleep(finalWait / 2)
			f.called(7)
			time.Sleep(10 * finalWait)
		}, 1, false},
		"the link ends": {func(_ *final, closed func(), heard *atomic.Int64, cut func()) {
			closed()
			cut()
			for range 6 {
				time.Sleep(finalWait / 2)
				heard.Add(1)
			}
		}, 0, false},
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
				e.of(&f)
				tc.does(&f, e.closed, &heard, cut)
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
