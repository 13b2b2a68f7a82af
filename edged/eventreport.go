package edged

import (
	"context"
	"math/bits"
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
	// eventsWaiting is how many events wait for the store; more are not told.
	eventsWaiting = 256
	// eventsTold is how many pods' newest events are remembered as told.
	eventsTold = 256
	// eventAgain is how long a repeated event stays untold at most.
	eventAgain = 10 * time.Minute
)

// eventStore keeps events until the cloud has them; see metaclient.
type eventStore interface {
	ReportEvent(ctx context.Context, event *v1.Event, again bool) error
}

// eventReporter hands events to the store, away from those who record them. Each lands on flash and on a metered
// link: one that repeats is told the first time, and then when its count has doubled or it is long since.
type eventReporter struct {
	store   eventStore
	enabled bool
	limit   *rate.Limiter
	waiting chan v1.Event
	// told is when each event was told last; the run goroutine's own.
	told map[eventKey]time.Time
}

type eventKey struct {
	uid  types.UID
	name string
}

func newEventReporter(store eventStore, opts EventOptions) *eventReporter {
	limit := rate.NewLimiter(rate.Inf, 0)
	if opts.QPS > 0 {
		limit = rate.NewLimiter(rate.Limit(opts.QPS), max(opts.Burst, 1))
	}
	return &eventReporter{store: store, enabled: opts.Enable, limit: limit, waiting: make(chan v1.Event, eventsWaiting), told: map[eventKey]time.Time{}}
}

// take is given each event as it happens; it never waits. The cloud does not know static pods.
func (r *eventReporter) take(event v1.Event, pod *v1.Pod) {
	if !r.enabled || isStatic(pod) || !r.limit.Allow() {
		return
	}
	select {
	case r.waiting <- event:
	default:
		klog.V(2).InfoS("Event not told: too many wait", "pod", klog.KObj(pod), "reason", event.Reason)
	}
}

// run stores events until ctx ends.
func (r *eventReporter) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-r.waiting:
			r.tell(ctx, &event, time.Now())
		}
	}
}

func (r *eventReporter) tell(ctx context.Context, event *v1.Event, now time.Time) {
	key := eventKey{event.InvolvedObject.UID, event.Name}
	last, again := r.told[key]
	if again && !worthTelling(event.Count, now.Sub(last)) {
		return
	}
	if err := r.store.ReportEvent(ctx, event, again); err != nil {
		if ctx.Err() == nil {
			klog.V(2).InfoS("Event not told", "event", klog.KObj(event), "reason", event.Reason, "err", err)
		}
		return
	}
	if len(r.told) >= eventsTold {
		r.forgetOldest()
	}
	r.told[key] = now
}

func (r *eventReporter) forgetOldest() {
	var oldest eventKey
	var at time.Time
	for key, t := range r.told {
		if at.IsZero() || t.Before(at) {
			oldest, at = key, t
		}
	}
	delete(r.told, oldest)
}

// worthTelling tells whether an event that happened again is news.
func worthTelling(count int32, since time.Duration) bool {
	return bits.OnesCount32(uint32(count)) == 1 || since >= eventAgain || since < 0
}
