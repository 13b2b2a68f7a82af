package metamanager

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
	if m.Route.Operation == "inventory" {
		return `{"synced":true}`
	}
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

func newHeld(t *testing.T, change func(*Module)) (*edge, *held) {
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
		e, c := newHeld(t, func(*Module) {})
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
		e, c := newHeld(t, func(*Module) {})
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
			e, h := linkedWith(t, func(m *Module) { c.Store, m.store = m.store, c })
			h.answer(synced(good))
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
		e, h := linkedWith(t, func(m *Module) { s.Store, m.store = m.store, s })
		h.answer(synced(good))
		e.link(upWithOurs)
		for i := range 50 {
			e.ok(e.edged("patch", fmt.Sprintf("a/podpatch/p%d", i), quote(t, patch(fmt.Sprint("u", i), "Running"))))
		}
		waitRemoved()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.keys != 2 { // for the drain, and for the inventory
			t.Errorf("the outbox was read %d times for 50 reports, want 2", s.keys)
		}
		if got := e.waiting(); got != nil {
			t.Errorf("the outbox holds %v, want nothing", got)
		}
	})
}

// TestDroppedEventsAreForgotten: nothing is remembered of events that were dropped unsent.
func TestDroppedEventsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m *Module
		e, c := newHeld(t, func(own *Module) { m = own })
		e.link(upWithOurs)
		for i := range 3 * eventsMax {
			e.ok(e.edged("insert", fmt.Sprintf("a/event/e%04d", i), `{"reason":"Started"}`))
		}
		synctest.Wait()
		m.drain.mu.Lock()
		queues := len(m.drain.queues)
		m.drain.mu.Unlock()
		if most := eventsMax + eventSendersMax; queues > most {
			t.Errorf("%d queues, want up to %d", queues, most)
		}
		c.release()
	})
}

// TestChoose: which queue goes next.
func TestChoose(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	one := func(name string, since int64, c class) *queue {
		return &queue{name: name, since: since, event: c == classEvent, waiting: []waitingReport{{key: name, class: c}}}
	}
	end, status, other, event := one("end", 4, classEnd), one("status", 3, classStatus), one("other", 2, classOther),
		one("event", 1, classEvent)
	late, busy, empty := one("late", 0, classEnd), one("busy", 0, classEnd), one("empty", 0, classEnd)
	late.due, busy.busy, empty.waiting = now.Add(time.Minute), true, nil
	for _, c := range []struct {
		queues          []*queue
		room, eventRoom int
		want            string
		due             bool
	}{
		{[]*queue{event, other, status, end}, 1, 1, "end", false},
		{[]*queue{event, other, status}, 1, 1, "status", false},
		{[]*queue{event, other}, 1, 1, "other", false},
		{[]*queue{event}, 0, 1, "event", false},
		{[]*queue{event}, 9, 0, "", false},
		{[]*queue{event, status}, 0, 1, "", false},
		{[]*queue{late, busy, empty}, 9, 9, "", true},
		{[]*queue{late, event}, 9, 9, "event", true},
		{nil, 9, 9, "", false},
	} {
		queues := map[string]*queue{}
		for _, l := range c.queues {
			queues[l.name] = l
		}
		got, due := choose(queues, now, c.room, c.eventRoom)
		name := ""
		if got != nil {
			name = got.name
		}
		if name != c.want || due.IsZero() == c.due {
			t.Errorf("choose(%v, %d, %d) = %q, due %v; want %q, one that is due: %v", c.queues, c.room, c.eventRoom,
				name, due, c.want, c.due)
		}
	}
}

// A queue that began over a link and goes on over the next one: a report that it takes there and that fails is tried
// again.
func TestLaneOverNextLink(t *testing.T) {
	const status, end = "patch:u a/podpatch/p", "delete:u a/pod/p"
	now := time.Now()
	d := newDrain()
	d.up(eventSendersMax)
	d.add("a/pod/p u", status)
	l, _ := d.next(now)
	if got, _ := d.take(l, now); got.key != status {
		t.Fatalf("first report = %q, want %q", got.key, status)
	}
	d.down()
	d.up(eventSendersMax)
	d.add("a/pod/p u", end) // while the first one is acknowledged
	got, _ := d.take(l, now)
	if got.key != end {
		t.Fatalf("report over the next link = %q, want %q", got.key, end)
	}
	wait := d.done(l, got, now)
	if wait <= 0 {
		t.Errorf("wait after a failure = %v, want some", wait)
	}
	l, _ = d.next(now.Add(wait))
	if l == nil {
		t.Fatal("no queue is next after the wait, want that of the report which failed")
	}
	if got, _ := d.take(l, now); got.key != end {
		t.Errorf("report after the wait = %q, want %q", got.key, end)
	}
}

// A queue that failed goes after those that wait: ones that fail again and again do not take every place.
func TestFailedLaneGoesLast(t *testing.T) {
	const fails, waits = "patch:u a/podpatch/fails", "patch:v a/podpatch/waits"
	now := time.Now()
	d := newDrain()
	d.up(eventSendersMax)
	d.add("fails", fails)
	d.add("waits", waits)
	l, _ := d.next(now)
	first, _ := d.take(l, now)
	if first.key != fails {
		t.Fatalf("first report = %q, want %q", first.key, fails)
	}
	wait := d.done(l, first, now)
	if l, _ = d.next(now.Add(wait)); l == nil || l.name != "waits" {
		t.Errorf("queue after the failure = %+v, want that of %q", l, waits)
	}
}

// TestEventsDoNotStarve: while there are always more statuses than places, an event goes now and then.
func TestEventsDoNotStarve(t *testing.T) {
	now := time.Now()
	d := newDrain()
	d.up(eventSendersMax)
	d.add("a/event/e", "insert a/event/e")
	for i := range 2 * sendersMax {
		d.add(fmt.Sprint("pod", i), fmt.Sprintf("patch:%d a/podpatch/p%d", i, i))
	}
	for i := range 2 * eventTurn {
		l, _ := d.next(now)
		if l == nil {
			t.Fatalf("no report is next after %d", i)
		}
		if l.event {
			if i != eventTurn {
				t.Errorf("the event went after %d reports, want %d", i, eventTurn)
			}
			return
		}
		report, _ := d.take(l, now)
		d.add(l.name, report.key) // it changed meanwhile
		d.done(l, waitingReport{}, now)
	}
	t.Errorf("no event went in %d turns", 2*eventTurn)
}

// TestRefusedReport: a report that the cloud refused is sent again after pauses that grow to minutes. The rest of its
// queue does not wait for it, and neither does a newer report in its place, or a new link.
func TestRefusedReport(t *testing.T) {
	const status, end = "patch:u a/podpatch/p", "delete:u a/pod/p"
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	d := newDrain()
	d.up(eventSendersMax)
	d.add("p", status)
	d.add("p", end)
	l, _ := d.next(now)
	take := func() waitingReport {
		t.Helper()
		if l == nil {
			t.Fatal("no queue is next, want one")
		}
		r, _ := d.take(l, now)
		return r
	}
	refused := take()
	if refused.key != status {
		t.Fatalf("first report = %q, want %q", refused.key, status)
	}
	d.refused(l, refused, now)
	if r := take(); r.key != end {
		t.Fatalf("report after the refused status = %q, want %q", r.key, end)
	}
	if r := take(); r.key != "" {
		t.Fatalf("third report = %q, want none yet", r.key)
	}
	d.done(l, waitingReport{}, now)
	var wait time.Duration
	for range 12 {
		next, pause := d.next(now)
		if next != nil || pause <= 0 {
			t.Fatalf("next = %+v in %v, want none for some time", next, pause)
		}
		now = now.Add(pause)
		l, _ = d.next(now)
		wait = d.refused(l, take(), now)
		d.done(l, waitingReport{}, now)
	}
	if most := refusedMax + refusedMax/4; wait < refusedMax || wait > most {
		t.Errorf("pause after many refusals = %v, want %v to %v", wait, refusedMax, most)
	}
	d.add("p", status) // another status
	if l, _ = d.next(now); take().key != status {
		t.Error("a newer status waits, want it sent at once")
	}
	d.refused(l, waitingReport{key: status, class: classStatus}, now)
	d.done(l, waitingReport{}, now)
	d.up(eventSendersMax)
	d.add("p", status)
	if l, _ = d.next(now); take().key != status {
		t.Error("the status waits over a new link, want it sent at once")
	}
}
