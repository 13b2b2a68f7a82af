package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/store"
)

// held is a cloud that keeps what it is sent, in order, and answers it when the test says so.
type held struct {
	t   *testing.T
	bus *beehive.Bus
	mu  sync.Mutex
	got []*model.Message
}

func (c *held) answer(m *model.Message) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got = append(c.got, m)
	return ""
}

// release answers all that came since the last call, and returns "operation resource" of each, in order.
func (c *held) release() []string {
	c.t.Helper()
	synctest.Wait()
	c.mu.Lock()
	got := c.got
	c.got = nil
	c.mu.Unlock()
	var names []string
	for _, m := range got {
		names = append(names, m.Route.Operation+" "+m.Route.Resource)
		if err := c.bus.SendResp(c.t.Context(), m.Respond([]byte(good))); err != nil {
			c.t.Error(err)
		}
	}
	return names
}

func newHeld(t *testing.T, change func(*Outbox)) (*edge, *held) {
	t.Helper()
	e, h := linkedWith(t, change)
	c := &held{t: t, bus: e.bus}
	h.answer(c.answer)
	return e, c
}

// TestReportsBeforeEvents: over a new link the ends of pods go first, with their statuses, then statuses, then events,
// which never take the place of another report.
func TestReportsBeforeEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, c := newHeld(t, func(*Outbox) {})
		const pods, ends, events = 30, 5, 50
		for i := range events {
			e.ok(e.edged("insert", fmt.Sprintf("a/event/e%02d", i), `{"reason":"Started"}`))
		}
		for i := range pods {
			e.ok(e.edged("patch", fmt.Sprintf("a/podpatch/p%02d", i), quote(t, patch(fmt.Sprint("u", i), "Running"))))
		}
		var want []string
		for i := pods; i < pods+ends; i++ {
			e.ok(e.edged("patch", fmt.Sprintf("a/podpatch/p%02d", i), quote(t, patch(fmt.Sprint("u", i), "Failed"))))
			e.ok(e.edged("delete", fmt.Sprintf("a/pod/p%02d", i), end(fmt.Sprint("u", i))))
			want = append(want, fmt.Sprintf("patch a/podpatch/p%02d", i))
		}
		for i := range sendersMax - ends {
			want = append(want, fmt.Sprintf("patch a/podpatch/p%02d", i))
		}
		e.link(upWithOurs)
		first := c.release()
		slices.Sort(first)
		slices.Sort(want)
		if diff := cmp.Diff(want, first); diff != "" {
			t.Errorf("sent first (-want +got):\n%s", diff)
		}
		sent, begun := len(first), false // begun: events are sent
		for got := c.release(); got != nil; got = c.release() {
			here := len(slices.DeleteFunc(slices.Clone(got), func(name string) bool {
				return !strings.HasPrefix(name, "insert a/event/")
			}))
			if here > eventSendersMax || begun && here < len(got) {
				t.Errorf("sent together %v, want up to %d events, and no report after the first of them", got,
					eventSendersMax)
			}
			sent, begun = sent+len(got), begun || here > 0
		}
		if want := pods + 2*ends + events; sent != want {
			t.Errorf("%d reports sent, want %d", sent, want)
		}
		waitRemoved()
		if keys := e.waiting(); keys != nil {
			t.Errorf("outbox = %v, want none", keys)
		}
	})
}

// TestReplacedReportIsNotSent: a status that was replaced while it waited for its turn is not sent.
func TestReplacedReportIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, c := newHeld(t, func(*Outbox) {})
		e.link(upWithOurs)
		for i := range sendersMax {
			e.ok(e.edged("patch", fmt.Sprintf("a/podpatch/p%02d", i), quote(t, patch(fmt.Sprint("u", i), "Running"))))
		}
		for i := range 5 {
			e.ok(e.edged("patch", "a/podpatch/late", quote(t, patch("late", fmt.Sprint(i)))))
		}
		if got := c.release(); len(got) != sendersMax {
			t.Errorf("%d reports on their way, want %d: %v", len(got), sendersMax, got)
		}
		synctest.Wait()
		c.mu.Lock()
		var texts []string
		for _, m := range c.got {
			texts = append(texts, string(m.ContentData()))
		}
		c.mu.Unlock()
		if diff := cmp.Diff([]string{patch("late", "4")}, texts); diff != "" {
			t.Errorf("sent of the last pod (-want +got):\n%s", diff)
		}
		c.release()
		if got := c.release(); got != nil {
			t.Errorf("sent again = %v, want nothing", got)
		}
	})
}

// failing is a store whose reads of the outbox do what the test says.
type failing struct {
	Store
	mu         sync.Mutex
	keys, gets int
	// onKeys and onGet, if not nil, are called with how often they were called before.
	onKeys, onGet func(int) error
}

func (s *failing) count(n *int, do func(int) error) error {
	s.mu.Lock()
	now := *n
	*n++
	s.mu.Unlock()
	if do == nil {
		return nil
	}
	return do(now)
}

func (s *failing) OutboxKeys(ctx context.Context) ([]store.Report, error) {
	if err := s.count(&s.keys, s.onKeys); err != nil {
		return nil, err
	}
	return s.Store.OutboxKeys(ctx)
}

func (s *failing) OutboxGet(ctx context.Context, key string) (store.Report, error) {
	if err := s.count(&s.gets, s.onGet); err != nil {
		return store.Report{}, err
	}
	return s.Store.OutboxGet(ctx, key)
}

// TestDrainSurvives: reports leave although the store failed, or something panicked, and what fails for ever is tried
// less and less.
func TestDrainSurvives(t *testing.T) {
	once := func(err error) func(int) error {
		return func(n int) error {
			if n > 0 {
				return nil
			}
			if err == nil {
				panic("boom")
			}
			return err
		}
	}
	for name, c := range map[string]*failing{
		"list fails":   {onKeys: once(errors.New("disk"))},
		"list panics":  {onKeys: once(nil)},
		"read fails":   {onGet: once(errors.New("disk"))},
		"read panics":  {onGet: once(nil)},
		"always fails": {onGet: func(int) error { panic("boom") }},
	} {
		bubble(t, name, func(t *testing.T) {
			e, h := linkedWith(t, func(o *Outbox) { c.Store, o.store = o.store, c })
			h.answer(always(good))
			e.ok(e.edged("patch", "default/podpatch/one", quote(t, patch("u1", "Running"))))
			e.link(upWithOurs)
			time.Sleep(10 * time.Minute) // of the simulated clock
			synctest.Wait()
			if name == "always fails" {
				if c.mu.Lock(); c.gets < 5 || c.gets > 20 {
					t.Errorf("tried %d times in 10 minutes, want 5 to 20", c.gets)
				}
				c.mu.Unlock()
				return
			}
			if got := e.waiting(); got != nil {
				t.Errorf("the outbox holds %v, want nothing", got)
			}
		})
	}
}

// TestOutboxIsReadOnce: what was sent does not have the whole outbox read again.
func TestOutboxIsReadOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &failing{}
		e, h := linkedWith(t, func(o *Outbox) { s.Store, o.store = o.store, s })
		h.answer(always(good))
		e.link(upWithOurs)
		for i := range 50 {
			e.ok(e.edged("patch", fmt.Sprintf("a/podpatch/p%d", i), quote(t, patch(fmt.Sprint("u", i), "Running"))))
		}
		waitRemoved()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.keys != 1 {
			t.Errorf("the outbox was read %d times for 50 reports, want 1", s.keys)
		}
		if got := e.waiting(); got != nil {
			t.Errorf("the outbox holds %v, want nothing", got)
		}
	})
}

// TestDroppedEventsAreForgotten: nothing is remembered of events that were dropped unsent.
func TestDroppedEventsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o *Outbox
		e, c := newHeld(t, func(own *Outbox) { o = own })
		e.link(upWithOurs)
		for i := range 3 * eventsMax {
			e.ok(e.edged("insert", fmt.Sprintf("a/event/e%04d", i), `{"reason":"Started"}`))
		}
		synctest.Wait()
		if queues, most := o.Queues(), eventsMax+eventSendersMax; queues > most {
			t.Errorf("%d queues, want up to %d", queues, most)
		}
		c.release()
	})
}
