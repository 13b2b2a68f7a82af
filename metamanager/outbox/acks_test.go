package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// slowDisk is a store that writes nothing while it is slow, or fails.
type slowDisk struct {
	Store
	mu   sync.Mutex
	slow chan struct{} // closed when it writes again; nil: it writes
	fail error
}

func (s *slowDisk) set(slow chan struct{}, fail error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slow, s.fail = slow, fail
}

func (s *slowDisk) Apply(ctx context.Context, ops ...store.Op) error {
	s.mu.Lock()
	slow, fail := s.slow, s.fail
	s.mu.Unlock()
	switch {
	case fail != nil:
		return fail
	case slow != nil:
		select {
		case <-slow:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return s.Store.Apply(ctx, ops...)
}

// TestAnsweredReports: the places of reports are free when the cloud has answered, and do not wait for the disk. What
// was answered is neither pending in the inventory nor sent again over the next link, and is removed when the disk
// works.
func TestAnsweredReports(t *testing.T) {
	for name, fail := range map[string]error{"slow": nil, "failing": errors.New("disk")} {
		bubble(t, name, func(t *testing.T) {
			var o *Outbox
			disk := &slowDisk{}
			e, c := newHeld(t, func(own *Outbox) {
				o = own
				disk.Store, o.store = o.store, disk
			})
			const pods = 3 * sendersMax
			for i := range pods {
				status := quote(t, patch(fmt.Sprint("u", i), "Running"))
				e.ok(e.edged("patch", fmt.Sprintf("a/podpatch/p%02d", i), status))
			}
			slow := make(chan struct{})
			disk.set(slow, fail)
			e.link(upWithOurs)
			sent := 0
			for got := c.release(); got != nil; got = c.release() {
				sent += len(got)
			}
			if sent != pods {
				t.Errorf("%d reports were sent while the disk was %s, want %d", sent, name, pods)
			}
			if pending, err := o.Pending(t.Context()); err != nil || len(pending) != 0 {
				t.Errorf("pending = %v, %v; want none", pending, err)
			}
			e.link(upWithOurs)
			if got := c.release(); got != nil {
				t.Errorf("sent again over the next link: %v", got)
			}
			disk.set(nil, nil)
			close(slow)
			time.Sleep(RetryMax) // of the simulated clock
			synctest.Wait()
			if got := e.waiting(); got != nil {
				t.Errorf("the outbox holds %v, want nothing", got)
			}
			if len(o.acks.seqs) != 0 {
				t.Errorf("%d reports are being removed, want none", len(o.acks.seqs))
			}
		})
	}
}

// TestNewerThanAnswered: a report that is newer than the one whose removal is under way waits, and is sent.
func TestNewerThanAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o *Outbox
		_, _ = newHeld(t, func(own *Outbox) { o = own })
		const key = "patch:u a/podpatch/p"
		old, next := store.Report{Key: key, Seq: 1}, store.Report{Key: key, Seq: 2}
		o.acks.addAnswered(old)
		if !o.acks.answered(old) || o.acks.answered(next) {
			t.Error("after the answer to the old report it counts as waiting, or the next one as answered")
		}
		o.acks.addAnswered(next)
		o.acks.forgetRemoved([]store.Report{old})
		if !o.acks.answered(next) {
			t.Error("the next report is forgotten with the old one")
		}
		o.acks.forgetRemoved([]store.Report{next})
		if len(o.acks.seqs) != 0 {
			t.Errorf("%d reports are left", len(o.acks.seqs))
		}
	})
}

// TestAnsweredStatusIsReportedAgain: a status whose report was answered, and is being removed, does not count as
// waiting, so that it is reported again when the cloud asks for it.
func TestAnsweredStatusIsReportedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &slowDisk{}
		e, c := newHeld(t, func(o *Outbox) { disk.Store, o.store = o.store, disk })
		const res = "a/podpatch/p"
		status := quote(t, patch("u", "Running"))
		r := Read(resource.Key{Namespace: "a", Type: resource.TypePodPatch, Name: "p"},
			model.New(model.ModuleEdged, model.GroupMeta, model.OpPatch, res, json.RawMessage(status)))
		waits := func(want bool) {
			t.Helper()
			if got, err := e.outbox.Waits(t.Context(), r); got != want || err != nil {
				t.Errorf("a report waits: %v, %v; want %v", got, err, want)
			}
		}
		waits(false)
		e.ok(e.edged("patch", res, status))
		waits(true)
		slow := make(chan struct{})
		disk.set(slow, nil)
		e.link(upWithOurs)
		if got := c.release(); len(got) != 1 {
			t.Fatalf("sent %v, want one status", got)
		}
		synctest.Wait()
		waits(false)
		e.ok(e.edged("patch", res, status))
		waits(true)
		disk.set(nil, nil)
		close(slow)
		if got := c.release(); len(got) != 1 {
			t.Errorf("sent %v, want the status again", got)
		}
	})
}
