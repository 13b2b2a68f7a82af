package cloudhub

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestRecordedFirst: an object is sent to an edge of upstream after it is recorded that the edge may hold it, and to
// one of ours, which tells itself what it holds, without that.
func TestRecordedFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked, record := make(chan string, 100), make(chan error)
		records := &memory{sending: func(ctx context.Context, ref Ref) error {
			asked <- ref.Key.String() + " " + ref.Kind
			select {
			case err := <-record:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}}
		c := startInMemory(t, func(o *Options) { o.Records = records })
		c.cluster.set("n1", "default/pod/web", "u-web", "a")
		c.cluster.set("n2", "default/pod/web", "u-web", "a")
		e := newEdge(t, "n1").dialUpstream(c)
		if got := wait.Receive(t, "the record", asked); got != "default/pod/web Pod" {
			t.Errorf("recorded %q, want the pod", got)
		}
		ours := newEdge(t, "n2").dialOurs(c)
		settled(t, c, ours)
		record <- errors.New("the API server is away")
		wait.Receive(t, "the record, once more", asked)
		if got := e.lines(); len(got) != 0 {
			t.Errorf("sent %v before it is recorded, want nothing", got)
		}
		record <- nil
		settled(t, c, e)
		c.cluster.set("n1", "default/pod/web", "u-web", "b")
		settled(t, c, e)
		c.cluster.set("n1", "default/pod/web", "u-web2", "c") // another object of the name
		wait.Receive(t, "the record of the other object", asked)
		want := []string{"insert default/pod/web", "update default/pod/web", "delete default/pod/web"}
		if diff := cmp.Diff(want, e.lines()); diff != "" {
			t.Errorf("pushes before the record mismatch (-want +got):\n%s", diff)
		}
		record <- nil
		settled(t, c, e)
		if n := len(asked); n != 0 {
			t.Errorf("%d more records, want none", n)
		}
	})
}

// TestRecordsOfManyObjects: while the records of objects take long, others are recorded and sent.
func TestRecordsOfManyObjects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var under, most atomic.Int32
		records := &memory{sending: func(context.Context, Ref) error {
			n := under.Add(1)
			defer under.Add(-1)
			if was := most.Load(); n > was {
				most.Store(n)
			}
			time.Sleep(time.Second)
			return nil
		}}
		c := startInMemory(t, func(o *Options) { o.Records = records })
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			c.cluster.set("n1", "default/pod/"+name, "u-"+name, "a")
		}
		e := newEdge(t, "n1").dialUpstream(c)
		settled(t, c, e)
		if got := most.Load(); got != lookupsMax {
			t.Errorf("%d objects were recorded at once, want %d", got, lookupsMax)
		}
	})
}
