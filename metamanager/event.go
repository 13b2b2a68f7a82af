package metamanager

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/resource"
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
		return fmt.Errorf("%s: the event has no name or is no JSON", key)
	}
	put, err := outbox(msg)
	if err != nil {
		return err
	}
	m.events.mu.Lock()
	defer m.events.mu.Unlock()
	if m.events.waiting++; !m.events.counted || m.events.waiting > eventsMax {
		drop, err := m.oldEvents(ctx)
		if err != nil {
			return err
		}
		return m.queue(ctx, key, append(drop, put)...)
	}
	return m.queue(ctx, key, put)
}

// oldEvents counts the events that wait, and returns what makes room.
func (m *Module) oldEvents(ctx context.Context) ([]store.Op, error) {
	reports, err := m.store.Outbox(ctx)
	if err != nil {
		return nil, err
	}
	var waiting []store.Report
	for _, r := range reports {
		var msg model.Message
		if key, err := decodeReport(r, &msg); err == nil && key.Type == resource.TypeEvent {
			waiting = append(waiting, r)
		}
	}
	m.events.counted, m.events.waiting = true, len(waiting)+1
	if len(waiting) < eventsMax {
		return nil, nil
	}
	var drop []store.Op
	for _, r := range waiting[:len(waiting)-eventsMax+eventsMax/10] {
		drop = append(drop, store.OutboxAck(r.Key, r.Seq))
	}
	m.events.waiting -= len(drop)
	return drop, nil
}
