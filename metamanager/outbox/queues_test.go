package outbox

import (
	"fmt"
	"testing"
	"time"
)

// TestChoose: which queue goes next.
func TestChoose(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	one := func(name string, since int64, c Class) *Queue {
		return &Queue{name: name, since: since, event: c == ClassEvent, waiting: []Report{{Key: name, class: c}}}
	}
	end, status, other, event := one("end", 4, ClassEnd), one("status", 3, ClassStatus), one("other", 2, ClassOther),
		one("event", 1, ClassEvent)
	late, busy, empty := one("late", 0, ClassEnd), one("busy", 0, ClassEnd), one("empty", 0, ClassEnd)
	late.due, busy.busy, empty.waiting = now.Add(time.Minute), true, nil
	for _, c := range []struct {
		queues          []*Queue
		room, eventRoom int
		want            string
		due             bool
	}{
		{[]*Queue{event, other, status, end}, 1, 1, "end", false},
		{[]*Queue{event, other, status}, 1, 1, "status", false},
		{[]*Queue{event, other}, 1, 1, "other", false},
		{[]*Queue{event}, 0, 1, "event", false},
		{[]*Queue{event}, 9, 0, "", false},
		{[]*Queue{event, status}, 0, 1, "", false},
		{[]*Queue{late, busy, empty}, 9, 9, "", true},
		{[]*Queue{late, event}, 9, 9, "event", true},
		{nil, 9, 9, "", false},
	} {
		queues := map[string]*Queue{}
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
	q := New()
	q.Up(EventSendersMax)
	q.Add("a/pod/p u", status)
	l, _ := q.Next(now)
	if got, _ := q.Take(l, now); got.Key != status {
		t.Fatalf("first report = %q, want %q", got.Key, status)
	}
	q.Down()
	q.Up(EventSendersMax)
	q.Add("a/pod/p u", end) // while the first one is acknowledged
	got, _ := q.Take(l, now)
	if got.Key != end {
		t.Fatalf("report over the next link = %q, want %q", got.Key, end)
	}
	wait := q.Done(l, got, now)
	if wait <= 0 {
		t.Errorf("wait after a failure = %v, want some", wait)
	}
	l, _ = q.Next(now.Add(wait))
	if l == nil {
		t.Fatal("no queue is next after the wait, want that of the report which failed")
	}
	if got, _ := q.Take(l, now); got.Key != end {
		t.Errorf("report after the wait = %q, want %q", got.Key, end)
	}
}

// A queue that failed goes after those that wait: ones that fail again and again do not take every place.
func TestFailedLaneGoesLast(t *testing.T) {
	const fails, waits = "patch:u a/podpatch/fails", "patch:v a/podpatch/waits"
	now := time.Now()
	q := New()
	q.Up(EventSendersMax)
	q.Add("fails", fails)
	q.Add("waits", waits)
	l, _ := q.Next(now)
	first, _ := q.Take(l, now)
	if first.Key != fails {
		t.Fatalf("first report = %q, want %q", first.Key, fails)
	}
	wait := q.Done(l, first, now)
	if l, _ = q.Next(now.Add(wait)); l == nil || l.name != "waits" {
		t.Errorf("queue after the failure = %+v, want that of %q", l, waits)
	}
}

// TestEventsDoNotStarve: while there are always more statuses than places, an event goes now and then.
func TestEventsDoNotStarve(t *testing.T) {
	now := time.Now()
	q := New()
	q.Up(EventSendersMax)
	q.Add("a/event/e", "insert a/event/e")
	for i := range 2 * SendersMax {
		q.Add(fmt.Sprint("pod", i), fmt.Sprintf("patch:%d a/podpatch/p%d", i, i))
	}
	for i := range 2 * eventTurn {
		l, _ := q.Next(now)
		if l == nil {
			t.Fatalf("no report is next after %d", i)
		}
		if l.event {
			if i != eventTurn {
				t.Errorf("the event went after %d reports, want %d", i, eventTurn)
			}
			return
		}
		report, _ := q.Take(l, now)
		q.Add(l.name, report.Key) // it changed meanwhile
		q.Done(l, Report{}, now)
	}
	t.Errorf("no event went in %d turns", 2*eventTurn)
}

// TestRefusedReport: a report that the cloud refused is sent again after pauses that grow to minutes. The rest of its
// queue does not wait for it, and neither does a newer report in its place, or a new link.
func TestRefusedReport(t *testing.T) {
	const status, end = "patch:u a/podpatch/p", "delete:u a/pod/p"
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	q := New()
	q.Up(EventSendersMax)
	q.Add("p", status)
	q.Add("p", end)
	l, _ := q.Next(now)
	take := func() Report {
		t.Helper()
		if l == nil {
			t.Fatal("no queue is next, want one")
		}
		r, _ := q.Take(l, now)
		return r
	}
	refused := take()
	if refused.Key != status {
		t.Fatalf("first report = %q, want %q", refused.Key, status)
	}
	q.Refused(l, refused, now)
	if r := take(); r.Key != end {
		t.Fatalf("report after the refused status = %q, want %q", r.Key, end)
	}
	if r := take(); r.Key != "" {
		t.Fatalf("third report = %q, want none yet", r.Key)
	}
	q.Done(l, Report{}, now)
	var wait time.Duration
	for range 12 {
		next, pause := q.Next(now)
		if next != nil || pause <= 0 {
			t.Fatalf("next = %+v in %v, want none for some time", next, pause)
		}
		now = now.Add(pause)
		l, _ = q.Next(now)
		wait = q.Refused(l, take(), now)
		q.Done(l, Report{}, now)
	}
	if most := RefusedMax + RefusedMax/4; wait < RefusedMax || wait > most {
		t.Errorf("pause after many refusals = %v, want %v to %v", wait, RefusedMax, most)
	}
	q.Add("p", status) // another status
	if l, _ = q.Next(now); take().Key != status {
		t.Error("a newer status waits, want it sent at once")
	}
	q.Refused(l, Report{Key: status, class: ClassStatus}, now)
	q.Done(l, Report{}, now)
	q.Up(EventSendersMax)
	q.Add("p", status)
	if l, _ = q.Next(now); take().Key != status {
		t.Error("the status waits over a new link, want it sent at once")
	}
}

// TestBackoff: a queue that fails waits longer each time, others do not wait for it, and over a new link none waits.
func TestBackoff(t *testing.T) {
	q, now := New(), time.Time{}
	q.Up(EventSendersMax)
	q.Add("a", "patch a")
	fail := func(name string) time.Duration {
		t.Helper()
		l, _ := q.Next(now)
		if l == nil || l.name != name {
			t.Fatalf("next queue = %+v, want %s", l, name)
		}
		r, _ := q.Take(l, now)
		return q.Done(l, r, now)
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
		if l, wait := q.Next(now); l != nil || wait != backoff {
			t.Fatalf("next = %+v in %v, want none in %v", l, wait, backoff)
		}
		now = now.Add(backoff)
	}
	l, _ := q.Next(now)
	q.Add("b", "patch b")
	about("b at first", fail("b"), RetryFirst)
	q.Take(l, now)
	q.Done(l, Report{}, now)
	q.Add("a", "patch a")
	about("a after a success", fail("a"), RetryFirst)
	q.Up(EventSendersMax)
	q.Add("a", "patch a")
	about("a over a new link", fail("a"), RetryFirst)
}
