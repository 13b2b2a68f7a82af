package edged

import (
	"context"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// EventOptions say which events the cloud is told of.
type EventOptions struct {
	// Enable: it is told of them at all.
	Enable bool
	// QPS and Burst bound them; QPS 0 is no bound.
	QPS   float64
	Burst int
}

const (
	// eventsWaiting is how many events wait for the store; of more the newest.
	eventsWaiting = 256
	// eventsTold is how many pods' newest events are remembered as told.
	eventsTold = 256
	// eventAgain is how long a repeated event stays untold at most.
	eventAgain = 10 * time.Minute
	// objectBurst events of one object are told, and then one in objectEvery, as Kubernetes' own components do: a pod that
	// crashes all day does not use up the link. objectsMax objects are remembered.
	objectBurst = 25
	objectEvery = 5 * time.Minute
	objectsMax  = 512
	// eventRetry and eventRetryMax bound the wait after the store refused an event.
	eventRetry    = time.Second
	eventRetryMax = time.Minute
	// eventFlush is how long an agent that ends stores what waits.
	eventFlush = time.Second
)

// eventStore keeps events until the cloud has them; see metaclient.
type eventStore interface {
	ReportEvent(ctx context.Context, event *v1.Event, again bool) error
}

// eventReporter hands events to the store, away from those who record them. Each lands on flash and on a metered
// link: one that repeats is told the first time, and then when its count has doubled or it is long since; and of one
// object, and of all, only so many are told in a time. What the store refuses waits for it, the newest of it.
type eventReporter struct {
	store   eventStore
	enabled atomic.Bool
	limit   *rate.Limiter
	woken   chan struct{}

	mu sync.Mutex
	// waiting are in the order in which they came, each once: an event that repeats takes the place of itself.
	waiting []v1.Event

	// The rest is the run goroutine's own: when each event was told last, and how often those of an object may be.
	told    map[eventKey]time.Time
	objects map[types.UID]*object
}

type eventKey struct {
	uid  types.UID
	name string
}

// object is how often events of an object may be told.
type object struct {
	limit *rate.Limiter
	last  time.Time
}

func newEventReporter(store eventStore, opts EventOptions) *eventReporter {
	r := &eventReporter{
		store: store, limit: rate.NewLimiter(rate.Inf, 1), woken: make(chan struct{}, 1),
		told: map[eventKey]time.Time{}, objects: map[types.UID]*object{},
	}
	r.set(opts)
	return r
}

// set takes over other options, also while events are told.
func (r *eventReporter) set(opts EventOptions) {
	limit := rate.Inf
	if opts.QPS > 0 {
		limit = rate.Limit(opts.QPS)
	}
	r.limit.SetBurst(max(opts.Burst, 1))
	r.limit.SetLimit(limit)
	r.enabled.Store(opts.Enable)
}

func keyOf(event *v1.Event) eventKey { return eventKey{event.InvolvedObject.UID, event.Name} }

// take is given each event as it happens; it never waits. An event of a static pod names that pod, and kubectl finds it
// from the mirror pod.
func (r *eventReporter) take(event v1.Event, _ *v1.Pod) {
	if !r.enabled.Load() {
		return
	}
	r.mu.Lock()
	r.put(event)
	r.mu.Unlock()
	poke(r.woken)
}

// put adds an event to those that wait, in the place of itself or at the end; of too many the oldest goes. It is called
// under the lock.
func (r *eventReporter) put(event v1.Event) {
	if i := slices.IndexFunc(r.waiting, func(w v1.Event) bool { return keyOf(&w) == keyOf(&event) }); i >= 0 {
		r.waiting[i] = event
		return
	}
	if len(r.waiting) >= eventsWaiting {
		klog.V(2).InfoS("Event not told: too many wait", "event", klog.KObj(&r.waiting[0]), "reason", r.waiting[0].Reason)
		r.waiting = slices.Delete(r.waiting, 0, 1)
	}
	r.waiting = append(r.waiting, event)
}

// putBack has an event wait again that the store refused, unless a newer state of it does, or too many others do.
func (r *eventReporter) putBack(event v1.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) < eventsWaiting && !slices.ContainsFunc(r.waiting, func(w v1.Event) bool { return keyOf(&w) == keyOf(&event) }) {
		r.waiting = slices.Insert(r.waiting, 0, event)
	}
}

// next takes the event that waits longest.
func (r *eventReporter) next() (event v1.Event, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 {
		return event, false
	}
	event = r.waiting[0]
	r.waiting = slices.Delete(r.waiting, 0, 1)
	return event, true
}

// run stores events until ctx ends, and what is left then.
func (r *eventReporter) run(ctx context.Context) error {
	delay := time.Duration(0)
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for {
		select {
		case <-ctx.Done():
			last, stop := context.WithTimeout(context.WithoutCancel(ctx), eventFlush)
			defer stop()
			r.drain(last)
			return nil
		case <-r.woken:
			if delay > 0 {
				continue // the timer runs
			}
		case <-timer.C:
		}
		if r.drain(ctx) {
			delay = 0
			continue
		}
		delay = min(max(2*delay, eventRetry), eventRetryMax)
		timer.Reset(delay)
	}
}

// drain tells what waits, and returns false when the store refused one.
func (r *eventReporter) drain(ctx context.Context) bool {
	for {
		event, ok := r.next()
		if !ok {
			return true
		}
		if err := r.tell(ctx, &event, time.Now()); err != nil {
			r.putBack(event)
			klog.V(2).InfoS("Event not stored yet", "event", klog.KObj(&event), "reason", event.Reason, "err", err)
			return false
		}
	}
}

// tell stores an event that is worth it. An error says that it is to be tried again.
func (r *eventReporter) tell(ctx context.Context, event *v1.Event, now time.Time) error {
	key := keyOf(event)
	last, again := r.told[key]
	if again && !worthTelling(event.Count, now.Sub(last)) {
		return nil
	}
	undo, ok := r.allowed(key.uid, now)
	if !ok {
		klog.V(2).InfoS("Event not told: there are too many", "event", klog.KObj(event), "reason", event.Reason)
		return nil
	}
	if err := r.store.ReportEvent(ctx, event, again); err != nil {
		undo()
		return err
	}
	if len(r.told) >= eventsTold {
		forgetOldest(r.told, func(t time.Time) time.Time { return t })
	}
	r.told[key] = now
	return nil
}

// allowed tells whether one more event may be told, and counts it; undo takes that back.
func (r *eventReporter) allowed(of types.UID, now time.Time) (undo func(), ok bool) {
	o := r.objects[of]
	if o == nil {
		if len(r.objects) >= objectsMax {
			forgetOldest(r.objects, func(o *object) time.Time { return o.last })
		}
		o = &object{limit: rate.NewLimiter(rate.Every(objectEvery), objectBurst)}
		r.objects[of] = o
	}
	o.last = now
	own, all := o.limit.ReserveN(now, 1), r.limit.ReserveN(now, 1)
	undo = func() {
		own.CancelAt(now)
		all.CancelAt(now)
	}
	if own.DelayFrom(now) > 0 || all.DelayFrom(now) > 0 {
		undo()
		return nil, false
	}
	return undo, true
}

// forgetOldest deletes what is longest ago.
func forgetOldest[K comparable, V any](m map[K]V, when func(V) time.Time) {
	var oldest K
	var at time.Time
	for key, v := range m {
		if t := when(v); at.IsZero() || t.Before(at) {
			oldest, at = key, t
		}
	}
	delete(m, oldest)
}

// worthTelling tells whether an event that happened again is news.
func worthTelling(count int32, since time.Duration) bool {
	return bits.OnesCount32(uint32(count)) == 1 || since >= eventAgain || since < 0
}
