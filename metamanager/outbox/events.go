package outbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// eventsMax is how many events wait for the cloud at most: of a week without a link the newest are of use.
const eventsMax = 500

// events counts the events that wait. Its zero value has not counted yet.
type events struct {
	mu      sync.Mutex
	counted bool
	waiting int
}

// AddEvent is Add for an event. When too many wait, the oldest tenth goes.
func (o *Outbox) AddEvent(ctx context.Context, r *Report) error {
	if r.Object.Name == "" || !r.Valid {
		return fmt.Errorf("%s: the event has no name or is not JSON", r.Object)
	}
	old, err := o.makeRoomForEvent(ctx)
	if err != nil {
		return err
	}
	ops, keys := make([]store.Op, 0, len(old)), make([]string, 0, len(old))
	for _, e := range old {
		ops, keys = append(ops, store.OutboxAck(e.Key, e.Seq)), append(keys, e.Key)
	}
	if err := o.Add(ctx, r, ops...); err != nil {
		return err
	}
	if len(keys) > 0 {
		o.queues.drop(keys)
	}
	return nil
}

// makeRoomForEvent counts one more event, and returns the old events to delete for it. It runs before the event is
// stored, so that many events can share a commit.
func (o *Outbox) makeRoomForEvent(ctx context.Context) ([]store.Report, error) {
	o.events.mu.Lock()
	defer o.events.mu.Unlock()
	if o.events.waiting++; o.events.counted && o.events.waiting <= eventsMax {
		return nil, nil
	}
	return o.oldEvents(ctx)
}

// oldEvents counts the waiting events, and returns the old ones to delete; o.events.mu is held.
func (o *Outbox) oldEvents(ctx context.Context) ([]store.Report, error) {
	reports, err := o.store.OutboxKeys(ctx)
	if err != nil {
		return nil, err
	}
	waiting := slices.DeleteFunc(reports, func(r store.Report) bool {
		return classOf(r.Key) != classEvent
	})
	smallsort.SortFunc(waiting, func(a, b store.Report) int { return cmp.Compare(a.Seq, b.Seq) }) // the newest stay
	o.events.counted, o.events.waiting = true, len(waiting)+1
	if len(waiting) < eventsMax {
		return nil, nil
	}
	old := waiting[:len(waiting)-eventsMax+eventsMax/10]
	o.events.waiting -= len(old)
	return old, nil
}
