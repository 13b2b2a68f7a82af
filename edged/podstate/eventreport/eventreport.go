// Package eventreport writes events to the store, from which metamanager sends them to the API server.
//
// Each event costs a write to flash and bytes on a metered link. So a repeated event is reported the first time, then
// when its count reaches a power of two or after ten minutes, and the number of events is limited: for each object and
// type of event, and in all.
// Events wait while the store refuses them; if too many wait, the oldest is dropped. They also wait a few seconds while
// pods start or end: their writes, here and in the cloud, would delay those.
package eventreport

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

	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// Options say which events are reported.
type Options struct {
	// Enable reports events at all.
	Enable bool
	// QPS and Burst limit the events of all objects; QPS 0 is no limit.
	QPS   float64
	Burst int
}

const (
	// maxPending is how many events wait for the store. The oldest are dropped.
	maxPending = 256
	// maxReported is how many reported events are remembered, to recognise repeated ones.
	maxReported = 256
	// repeatAfter is how long a repeated event stays unreported at most.
	repeatAfter = 10 * time.Minute
	// objectBurst events of one object and type are reported at once, then one in objectEvery, as Kubernetes' own
	// components do: a pod that crashes all day does not use up the link, and its warnings do not keep back what else
	// happens to it. maxObjects limits are remembered.
	objectBurst = 25
	objectEvery = 5 * time.Minute
	maxObjects  = 512
	// retryMin and retryMax bound the wait after the store refused an event.
	retryMin = time.Second
	retryMax = time.Minute
	// atOnce is how many events are stored at a time: they share the store's commits.
	atOnce = 16
	// yieldFor is how long events wait at most while the node is busy, and yieldStep how often that is looked at. They
	// wait no longer once yieldPending are there.
	yieldFor     = 5 * time.Second
	yieldStep    = 200 * time.Millisecond
	yieldPending = maxPending / 2
	// flushTimeout is how long an agent that stops may store what is pending.
	flushTimeout = time.Second
)

// Store keeps events until the API server has them; package metaclient implements it.
type Store interface {
	// ReportEvent stores an event; again says that it was reported before, with a lower count.
	ReportEvent(ctx context.Context, event *v1.Event, again bool) error
}

// Reporter stores events. Take and Set may be called from any goroutine.
type Reporter struct {
	store   Store
	busy    func() bool
	enabled atomic.Bool
	limit   *rate.Limiter
	changed notify.Signal

	mu sync.Mutex
	// pending are in the order in which they came. Each is there once: a repeated event replaces its earlier state.
	pending []pending

	// Only Run uses the rest: when each event was reported last, and the limit of each object and type of event.
	reported map[eventKey]time.Time
	objects  map[objectKey]*object
}

// pending is an event that waits, and when it came, which counts for the limits: events that wait together came at
// different times.
type pending struct {
	v1.Event
	at time.Time
}

type eventKey struct {
	uid  types.UID
	name string
}

type objectKey struct {
	uid       types.UID
	eventType string
}

// object limits the events of one object and type.
type object struct {
	limit *rate.Limiter
	last  time.Time
}

// New returns a Reporter that stores nothing before Run. busy reports whether pods start or end.
func New(store Store, busy func() bool, opts Options) *Reporter {
	r := &Reporter{
		store:    store,
		busy:     busy,
		limit:    rate.NewLimiter(rate.Inf, 1),
		changed:  notify.NewSignal(),
		reported: map[eventKey]time.Time{},
		objects:  map[objectKey]*object{},
	}
	r.Set(opts)
	return r
}

// Set replaces the options, also while Run runs.
func (r *Reporter) Set(opts Options) {
	limit := rate.Inf
	if opts.QPS > 0 {
		limit = rate.Limit(opts.QPS)
	}
	r.limit.SetBurst(max(opts.Burst, 1))
	r.limit.SetLimit(limit)
	r.enabled.Store(opts.Enable)
}

func keyOf(event *v1.Event) eventKey { return eventKey{event.InvolvedObject.UID, event.Name} }

// Take queues an event to be reported. It never blocks. An event of a static pod names that pod; kubectl finds it from
// the mirror pod.
func (r *Reporter) Take(event v1.Event, _ *v1.Pod) {
	if !r.enabled.Load() {
		return
	}
	r.mu.Lock()
	r.addPending(event)
	r.mu.Unlock()
	r.changed.Notify()
}

// addPending adds an event, or replaces its earlier state. It drops the oldest event if too many are pending. It is
// called under the lock.
func (r *Reporter) addPending(event v1.Event) {
	if i := r.index(&event); i >= 0 {
		r.pending[i].Event = event
		return
	}
	if len(r.pending) >= maxPending {
		oldest := &r.pending[0].Event
		klog.V(2).InfoS("Event not reported: too many are pending", "event", klog.KObj(oldest), "reason", oldest.Reason)
		r.pending = slices.Delete(r.pending, 0, 1)
	}
	r.pending = append(r.pending, pending{event, time.Now()})
}

// index returns where an event is pending, or -1. It is called under the lock.
func (r *Reporter) index(event *v1.Event) int {
	return slices.IndexFunc(r.pending, func(p pending) bool { return keyOf(&p.Event) == keyOf(event) })
}

// putBack adds an event that the store refused, unless a newer state of it is pending, or too many events are.
func (r *Reporter) putBack(event v1.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.pending) < maxPending && r.index(&event) < 0 {
		r.pending = slices.Insert(r.pending, 0, pending{event, time.Now()})
	}
}

// next removes and returns the event that waited longest.
func (r *Reporter) next() (p pending, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.pending) == 0 {
		return p, false
	}
	p = r.pending[0]
	if r.pending = slices.Delete(r.pending, 0, 1); len(r.pending) == 0 {
		r.pending = nil // a burst's events take 0.1 MB
	}
	return p, true
}

// Run stores events until ctx ends, and then those that are pending, for flushTimeout at most.
func (r *Reporter) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	backoff, failing := retry.NewBackoff(retryMin, retryMax), false
	var since time.Time // when the pending events began to wait, zero if they do not
	for {
		select {
		case <-ctx.Done():
			last, stop := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
			defer stop()
			r.storePending(last)
			return nil
		case <-r.changed:
			if failing || !since.IsZero() {
				continue // the timer runs
			}
		case <-timer.C:
		}
		now := time.Now()
		if since.IsZero() {
			since = now
		}
		if now.Sub(since) < yieldFor && r.count() < yieldPending && r.busy() {
			timer.Reset(yieldStep)
			continue
		}
		since = time.Time{}
		if failing = !r.storePending(ctx); failing {
			timer.Reset(backoff.Next())
		} else {
			backoff.Reset()
		}
	}
}

// count returns how many events are pending.
func (r *Reporter) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.pending)
}

// storePending stores the pending events, several at a time, and returns false if the store refused one.
func (r *Reporter) storePending(ctx context.Context) bool {
	for {
		now := time.Now()
		var batch []*admitted
		taken := 0
		for ; taken < atOnce; taken++ {
			p, ok := r.next()
			if !ok {
				break
			}
			if a := r.admit(&p.Event, p.at); a != nil {
				batch = append(batch, a)
			}
		}
		if taken == 0 {
			return true
		}
		if !r.storeAll(ctx, batch, now) {
			return false
		}
	}
}

// admitted is an event to store.
type admitted struct {
	event *v1.Event
	again bool
	// undo returns what the event took from the limits.
	undo func()
	err  error
}

// admit decides whether an event that came at a time is reported: it must be new and within the limits. Otherwise admit
// returns nil.
func (r *Reporter) admit(event *v1.Event, at time.Time) *admitted {
	key := keyOf(event)
	last, again := r.reported[key]
	if again && !isNews(event.Count, at.Sub(last)) {
		return nil
	}
	undo, ok := r.allowed(objectKey{key.uid, event.Type}, at)
	if !ok {
		klog.V(2).InfoS("Event not reported: there are too many", "event", klog.KObj(event), "reason", event.Reason)
		return nil
	}
	return &admitted{event: event, again: again, undo: undo}
}

// storeAll stores events concurrently. If the store refused some, they are pending again and storeAll returns false.
func (r *Reporter) storeAll(ctx context.Context, batch []*admitted, now time.Time) bool {
	var stores sync.WaitGroup
	for _, a := range batch {
		stores.Go(func() { a.err = r.store.ReportEvent(ctx, a.event, a.again) })
	}
	stores.Wait()
	ok := true
	for _, a := range slices.Backward(batch) { // the oldest is put back last, which is in front
		if a.err != nil {
			ok = false
			a.undo()
			r.putBack(*a.event)
			klog.V(2).InfoS("Event not stored yet", "event", klog.KObj(a.event), "reason", a.event.Reason, "err", a.err)
			continue
		}
		if len(r.reported) >= maxReported {
			forgetOldest(r.reported, func(t time.Time) time.Time { return t })
		}
		r.reported[keyOf(a.event)] = now
	}
	return ok
}

// allowed reports whether one more event of an object and type may be reported, and counts it; undo takes that back.
func (r *Reporter) allowed(of objectKey, now time.Time) (undo func(), ok bool) {
	o := r.objects[of]
	if o == nil {
		if len(r.objects) >= maxObjects {
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

// forgetOldest deletes the entry with the earliest time.
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

// isNews reports whether the repetition of an event is reported, given how long ago it was reported last.
func isNews(count int32, since time.Duration) bool {
	return bits.OnesCount32(uint32(count)) == 1 || since >= repeatAfter || since < 0
}
