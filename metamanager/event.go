package metamanager

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/outbox"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/resource"
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

// reportEvent queues an event. When too many wait, the oldest tenth goes.
func (m *Module) reportEvent(ctx context.Context, key resource.Key, msg *model.Message) error {
	if key.Name == "" || !json.Valid(msg.ContentData()) {
		return fmt.Errorf("%s: the event has no name or is not JSON", key)
	}
	old, err := m.makeRoomForEvent(ctx)
	if err != nil {
		return err
	}
	ops, keys := make([]store.Op, 0, len(old)), make([]string, 0, len(old))
	for _, r := range old {
		ops, keys = append(ops, store.OutboxAck(r.Key, r.Seq)), append(keys, r.Key)
	}
	if err := m.queue(ctx, key, msg, ops...); err != nil {
		return err
	}
	if len(keys) > 0 {
		m.drain.Drop(keys)
	}
	return nil
}

// makeRoomForEvent counts one more event, and returns the old events to delete for it. It runs before the event is
// stored, so that many events can share a commit.
func (m *Module) makeRoomForEvent(ctx context.Context) ([]store.Report, error) {
	m.events.mu.Lock()
	defer m.events.mu.Unlock()
	if m.events.waiting++; m.events.counted && m.events.waiting <= eventsMax {
		return nil, nil
	}
	return m.oldEvents(ctx)
}

// oldEvents counts the waiting events, and returns the old ones to delete; m.events.mu is held.
func (m *Module) oldEvents(ctx context.Context) ([]store.Report, error) {
	reports, err := m.store.OutboxKeys(ctx)
	if err != nil {
		return nil, err
	}
	waiting := slices.DeleteFunc(reports, func(r store.Report) bool {
		return outbox.ClassOf(r.Key) != outbox.ClassEvent
	})
	smallsort.SortFunc(waiting, func(a, b store.Report) int { return cmp.Compare(a.Seq, b.Seq) }) // the newest stay
	m.events.counted, m.events.waiting = true, len(waiting)+1
	if len(waiting) < eventsMax {
		return nil, nil
	}
	old := waiting[:len(waiting)-eventsMax+eventsMax/10]
	m.events.waiting -= len(old)
	return old, nil
}
