package outbox

import (
	"fmt"
	"testing"
	"time"
)

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
	q := newQueues()
	q.restart(eventSendersMax)
	q.add("a/pod/p u", status)
	l, _ := q.next(now)
	if got, _ := q.dequeue(l, now); got.key != status {
		t.Fatalf("first report = %q, want %q", got.key, status)
	}
	q.down()
	q.restart(eventSendersMax)
	q.add("a/pod/p u", end) // while the first one is acknowledged
	got, _ := q.dequeue(l, now)
	if got.key != end {
		t.Fatalf("report over the next link = %q, want %q", got.key, end)
	}
	wait := q.finish(l, got, now)
	if wait <= 0 {
		t.Errorf("wait after a failure = %v, want some", wait)
	}
	l, _ = q.next(now.Add(wait))
	if l == nil {
		t.Fatal("no queue is next after the wait, want that of the report which failed")
	}
	if got, _ := q.dequeue(l, now); got.key != end {
		t.Errorf("report after the wait = %q, want %q", got.key, end)
	}
}

// A queue that failed goes after those that wait: ones that fail again and again do not take every place.
func TestFailedLaneGoesLast(t *testing.T) {
	const fails, waits = "patch:u a/podpatch/fails", "patch:v a/podpatch/waits"
	now := time.Now()
	q := newQueues()
	q.restart(eventSendersMax)
	q.add("fails", fails)
	q.add("waits", waits)
	l, _ := q.next(now)
	first, _ := q.dequeue(l, now)
	if first.key != fails {
		t.Fatalf("first report = %q, want %q", first.key, fails)
	}
	wait := q.finish(l, first, now)
	if l, _ = q.next(now.Add(wait)); l == nil || l.name != "waits" {
		t.Errorf("queue after the failure = %+v, want that of %q", l, waits)
	}
}

// TestEventsDoNotStarve: while there are always more statuses than places, an event goes now and then.
func TestEventsDoNotStarve(t *testing.T) {
	now := time.Now()
	q := newQueues()
	q.restart(eventSendersMax)
	q.add("a/event/e", "insert a/event/e")
	for i := range 2 * sendersMax {
		q.add(fmt.Sprint("pod", i), fmt.Sprintf("patch:%d a/podpatch/p%d", i, i))
	}
	for i := range 2 * eventTurn {
		l, _ := q.next(now)
		if l == nil {
			t.Fatalf("no report is next after %d", i)
		}
		if l.event {
			if i != eventTurn {
				t.Errorf("the event went after %d reports, want %d", i, eventTurn)
			}
			return
		}
		report, _ := q.dequeue(l, now)
		q.add(l.name, report.key) // it changed meanwhile
		q.finish(l, waitingReport{}, now)
	}
	t.Errorf("no event went in %d turns", 2*eventTurn)
}

// TestRefusedReport: a report that the cloud refused is sent again after pauses that grow to minutes. The rest of its
// queue does not wait for it, and neither does a newer report in its place, or a new link.
func TestRefusedReport(t *testing.T) {
	const status, end = "patch:u a/podpatch/p", "delete:u a/pod/p"
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	q := newQueues()
	q.restart(eventSendersMax)
	q.add("p", status)
	q.add("p", end)
	l, _ := q.next(now)
	take := func() waitingReport {
		t.Helper()
		if l == nil {
			t.Fatal("no queue is next, want one")
		}
		r, _ := q.dequeue(l, now)
		return r
	}
	refused := take()
	if refused.key != status {
		t.Fatalf("first report = %q, want %q", refused.key, status)
	}
	q.refused(l, refused, now)
	if r := take(); r.key != end {
		t.Fatalf("report after the refused status = %q, want %q", r.key, end)
	}
	if r := take(); r.key != "" {
		t.Fatalf("third report = %q, want none yet", r.key)
	}
	q.finish(l, waitingReport{}, now)
	var wait time.Duration
	for range 12 {
		next, pause := q.next(now)
		if next != nil || pause <= 0 {
			t.Fatalf("next = %+v in %v, want none for some time", next, pause)
		}
		now = now.Add(pause)
		l, _ = q.next(now)
		wait = q.refused(l, take(), now)
		q.finish(l, waitingReport{}, now)
	}
	if most := refusedMax + refusedMax/4; wait < refusedMax || wait > most {
		t.Errorf("pause after many refusals = %v, want %v to %v", wait, refusedMax, most)
	}
	q.add("p", status) // another status
	if l, _ = q.next(now); take().key != status {
		t.Error("a newer status waits, want it sent at once")
	}
	q.refused(l, waitingReport{key: status, class: classStatus}, now)
	q.finish(l, waitingReport{}, now)
	q.restart(eventSendersMax)
	q.add("p", status)
	if l, _ = q.next(now); take().key != status {
		t.Error("the status waits over a new link, want it sent at once")
	}
}

// TestBackoff: a queue that fails waits longer each time, others do not wait for it, and over a new link none waits.
func TestBackoff(t *testing.T) {
	q, now := newQueues(), time.Time{}
	q.restart(eventSendersMax)
	q.add("a", "patch a")
	fail := func(name string) time.Duration {
		t.Helper()
		l, _ := q.next(now)
		if l == nil || l.name != name {
			t.Fatalf("next queue = %+v, want %s", l, name)
		}
		r, _ := q.dequeue(l, now)
		return q.finish(l, r, now)
	}
	about := func(what string, got, least time.Duration) {
		t.Helper()
		if most := least + least/4; got < least || got > most {
			t.Errorf("backoff of %s = %v, want %v to %v", what, got, least, most)
		}
	}
	for _, least := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		backoff := fail("a")
		about("a", backoff, least*time.Second)
		if l, wait := q.next(now); l != nil || wait != backoff {
			t.Fatalf("next = %+v in %v, want none in %v", l, wait, backoff)
		}
		now = now.Add(backoff)
	}
	l, _ := q.next(now)
	q.add("b", "patch b")
	about("b at first", fail("b"), RetryFirst)
	q.dequeue(l, now)
	q.finish(l, waitingReport{}, now)
	q.add("a", "patch a")
	about("a after a success", fail("a"), RetryFirst)
	q.restart(eventSendersMax)
	q.add("a", "patch a")
	about("a over a new link", fail("a"), RetryFirst)
}
