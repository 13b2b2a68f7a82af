package eventreport

import (
	stdcmp "cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// eventList is a store that may refuse.
type eventList struct {
	mu   sync.Mutex
	told []string
	full error
}

func (l *eventList) ReportEvent(_ context.Context, e *v1.Event, again bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.full == nil {
		l.told = append(l.told, fmt.Sprint(e.Name, " ", e.Count, " ", again))
	}
	return l.full
}

func eventOf(uid, name string, count int32) v1.Event {
	return v1.Event{ObjectMeta: metav1.ObjectMeta{Name: name}, InvolvedObject: v1.ObjectReference{UID: types.UID(uid)},
		Count: count}
}

// never is what a node on which no pods start or end says.
func never() bool { return false }

// report reports one event.
func report(t *testing.T, r *Reporter, e v1.Event, now time.Time) error {
	t.Helper()
	a := r.admit(&e, now)
	if a == nil || r.storeAll(t.Context(), []*admitted{a}, now) {
		return nil
	}
	return a.err
}

// waiting is a store that takes a while.
type waiting struct {
	mu         sync.Mutex
	now, most  int
	calls, bad int
}

func (w *waiting) ReportEvent(context.Context, *v1.Event, bool) error {
	w.mu.Lock()
	w.now++
	w.calls++
	w.most = max(w.most, w.now)
	fail := w.calls == 3
	w.mu.Unlock()
	time.Sleep(time.Second)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now--; fail {
		w.bad++
		return errors.New("refused")
	}
	return nil
}

// TestEventsShareCommits: events that wait are stored at a time, a bounded number, and one that is refused comes again.
func TestEventsShareCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &waiting{}
		r := New(w, never, Options{Enable: true})
		const events = 2*atOnce + 1
		for i := range events {
			r.Take(eventOf(fmt.Sprint(i), "e", 1), nil)
		}
		if r.storePending(t.Context()) {
			t.Error("storePending = true after a refusal")
		}
		if !r.storePending(t.Context()) {
			t.Error("storePending = false")
		}
		if w.most != atOnce || w.calls != events+1 || w.bad != 1 {
			t.Errorf("%d events at a time in %d calls, %d refused; want %d, %d and 1", w.most, w.calls, w.bad, atOnce,
				events+1)
		}
	})
}

// TestEventsYield: events wait while pods start or end, but for a few seconds at most, and not if there are many.
func TestEventsYield(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var busy atomic.Bool
		busy.Store(true)
		var l eventList
		r := New(&l, busy.Load, Options{Enable: true})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = r.Run(ctx) }()
		take := func(uids ...string) {
			for _, uid := range uids {
				r.Take(eventOf(uid, uid, 1), nil)
			}
		}
		told := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			l.mu.Lock()
			defer l.mu.Unlock()
			if len(l.told) != want {
				t.Errorf("%s: %d events are stored, want %d", when, len(l.told), want)
			}
		}
		take("a", "b")
		time.Sleep(yieldFor - time.Second)
		take("c")
		told("while the node is busy", 0)
		time.Sleep(time.Second + yieldStep)
		told("after the longest wait", 3)
		take("d")
		time.Sleep(yieldStep)
		told("while the node is busy again", 3)
		busy.Store(false)
		time.Sleep(yieldStep)
		told("when it is no longer busy", 4)
		take("e")
		told("while it is idle", 5)
		busy.Store(true)
		for i := range yieldPending {
			take(fmt.Sprint(i))
		}
		time.Sleep(yieldStep)
		told("when many wait", 5+yieldPending)
		take("f")
		told("before the agent stops", 5+yieldPending)
		cancel()
		<-ended
		told("after the agent has stopped", 6+yieldPending)
	})
}

// TestEventsYieldWithinLimits: events that wait together are limited as if none had waited.
func TestEventsYieldWithinLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var busy atomic.Bool
		busy.Store(true)
		var l eventList
		r := New(&l, busy.Load, Options{Enable: true, QPS: 10, Burst: 2})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = r.Run(ctx) }()
		const events = 40
		for i := range events { // the limit allows each at its time, but not all of them at once
			r.Take(eventOf(fmt.Sprint(i), fmt.Sprint(i), 1), nil)
			time.Sleep(time.Second / 10)
		}
		busy.Store(false)
		time.Sleep(yieldStep)
		synctest.Wait()
		l.mu.Lock()
		if len(l.told) != events {
			t.Errorf("%d events are stored, want %d", len(l.told), events)
		}
		l.mu.Unlock()
		cancel()
		<-ended
	})
}

// TestRepeatedEvents: reported when the count reaches a power of two, and when the last report is long ago.
func TestRepeatedEvents(t *testing.T) {
	var l eventList
	r := New(&l, never, Options{Enable: true})
	now := time.Unix(0, 0)
	tell := func(e v1.Event) {
		t.Helper()
		if err := report(t, r, e, now); err != nil {
			t.Error(err)
		}
	}
	for count := range int32(20) {
		now = now.Add(time.Second)
		tell(eventOf("u", "e", count+1))
	}
	now = now.Add(time.Hour)
	tell(eventOf("u", "e", 21))
	want := []string{"e 1 false", "e 2 true", "e 4 true", "e 8 true", "e 16 true", "e 21 true"}
	if diff := cmp.Diff(want, l.told); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	for i := range 2 * max(maxReported, maxObjects) {
		now = now.Add(1)
		tell(eventOf(fmt.Sprint(i), fmt.Sprint(i), 1))
	}
	if len(r.reported) > maxReported || len(r.objects) > maxObjects {
		t.Errorf("%d events and %d objects are remembered, want at most %d and %d", len(r.reported), len(r.objects),
			maxReported, maxObjects)
	}
}

// TestEventsOfOneObject: a pod with many events does not use up what others may report.
func TestEventsOfOneObject(t *testing.T) {
	var l eventList
	r := New(&l, never, Options{Enable: true})
	now := time.Unix(0, 0)
	for i := range 1000 { // half an hour
		now = now.Add(1800 * time.Millisecond)
		e := eventOf("noisy", fmt.Sprint("n", i), 1)
		if err := report(t, r, e, now); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(l.told); got < objectBurst || got > objectBurst+7 {
		t.Errorf("%d events of one object in half an hour, want %d and one in %v", got, objectBurst, objectEvery)
	}
	l.told = nil
	quiet := eventOf("quiet", "q", 1)
	if err := report(t, r, quiet, now); err != nil || len(l.told) != 1 {
		t.Errorf("told of another: %v, %v; want one event", l.told, err)
	}
	l.told = nil
	warning := eventOf("noisy", "w", 1)
	warning.Type = v1.EventTypeWarning
	if err := report(t, r, warning, now); err != nil || len(l.told) != 1 {
		t.Errorf("told of a warning after many other events: %v, %v; want one event", l.told, err)
	}
	limited := New(&l, never, Options{Enable: true, QPS: 0.001, Burst: 3})
	l.told = nil
	for i := range 10 {
		e := eventOf(fmt.Sprint("u", i), "e", 1)
		if err := report(t, limited, e, now); err != nil {
			t.Fatal(err)
		}
	}
	if len(l.told) != 3 {
		t.Errorf("%d events were reported, want 3", len(l.told))
	}
}

// number is that of an event in eventList.
func number(told string) (n int) {
	_, _ = fmt.Sscan(told, &n)
	return n
}

// TestPendingEvents: what the store refuses is stored later, the newest events and each once; an agent that stops
// stores the rest.
func TestPendingEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := eventList{full: errors.New("the disk is full")}
		r := New(&l, never, Options{Enable: true})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = r.Run(ctx) }()
		for i := range maxPending + 44 {
			r.Take(eventOf(fmt.Sprint("u", i), fmt.Sprint(i), 1), nil)
		}
		r.Take(eventOf("u299", "299", 2), nil)
		synctest.Wait()
		time.Sleep(10 * time.Hour) // each of hundreds of attempts is for nothing, and none counts
		l.mu.Lock()
		l.full = nil
		l.mu.Unlock()
		time.Sleep(2*retryMax + time.Second)
		synctest.Wait()
		slices.SortFunc(l.told, func(a, b string) int { return stdcmp.Compare(number(a), number(b)) })
		if len(l.told) != maxPending || l.told[0] != "44 1 false" || l.told[maxPending-1] != "299 2 false" {
			t.Errorf("%d are told, want %d, from 44 to 299: %v", len(l.told), maxPending, l.told)
		}
		l.told = nil
		r.Take(eventOf("u", "last", 1), nil)
		cancel()
		<-ended
		if diff := cmp.Diff([]string{"last 1 false"}, l.told); diff != "" {
			t.Errorf("at the end (-want +got):\n%s", diff)
		}
	})
	off := New(nil, never, Options{})
	off.Take(eventOf("u", "e", 1), nil)
	if len(off.pending) != 0 {
		t.Errorf("%d events wait while events are off, want 0", len(off.pending))
	}
}
