package edgehub

import (
	"context"
	"sync"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// priority orders the messages that wait for the link. Those of one priority keep their order.
type priority int

const (
	// first is for queries that pods wait for (a token, a Secret, a volume), acknowledgements, and the inventory.
	first priority = iota
	// normal is for statuses, deletions and everything else.
	normal
	// last is for events.
	last
	priorities
)

const (
	// maxQueued bounds the messages that wait in a sendQueue; further ones wait in the module's inbox.
	maxQueued = 256
	// maxPassed is how many messages of higher priorities may overtake a waiting one.
	maxPassed = 8
)

func priorityOf(m *model.Message) priority {
	if m.IsResponse() || m.Route.Operation == model.OpQuery || wire.IsInventory(m) {
		return first
	}
	if key, err := resource.Parse(m.Route.Resource); err == nil && key.Type == resource.TypeEvent {
		return last
	}
	return normal
}

// sendQueue holds the messages that wait for the link, by priority. So on a slow link, or with a rate limit, the most
// urgent messages are sent first. One goroutine calls put, another one wait and take.
type sendQueue struct {
	// added and taken are notified after each put and take.
	added, taken notify.Signal

	mu      sync.Mutex
	waiting [priorities][]*model.Message
	// passed counts, for each priority, the messages of higher priorities taken since its last one while it had waiting
	// messages.
	passed [priorities]int
}

func newSendQueue() *sendQueue {
	return &sendQueue{added: notify.NewSignal(), taken: notify.NewSignal()}
}

func (q *sendQueue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for _, list := range q.waiting {
		n += len(list)
	}
	return n
}

// room waits until the queue has room for a message, and returns false if ctx ends first.
func (q *sendQueue) room(ctx context.Context) bool {
	for q.len() >= maxQueued {
		select {
		case <-ctx.Done():
			return false
		case <-q.taken:
		}
	}
	return ctx.Err() == nil
}

func (q *sendQueue) put(m *model.Message) {
	q.mu.Lock()
	p := priorityOf(m)
	q.waiting[p] = append(q.waiting[p], m)
	q.mu.Unlock()
	q.added.Notify()
}

// wait waits for a message, and returns false if ctx ends first.
func (q *sendQueue) wait(ctx context.Context) bool {
	for q.len() == 0 {
		select {
		case <-ctx.Done():
			return false
		case <-q.added:
		}
	}
	return ctx.Err() == nil
}

// take removes and returns the next message: the oldest one of the highest priority, or of a priority that has been
// overtaken maxPassed times. The queue must not be empty.
func (q *sendQueue) take() *model.Message {
	q.mu.Lock()
	next := priorities
	for p := range priorities {
		if len(q.waiting[p]) > 0 && (next == priorities || q.passed[p] >= maxPassed) {
			next = p
		}
	}
	m := q.waiting[next][0]
	q.waiting[next][0] = nil
	if q.waiting[next] = q.waiting[next][1:]; len(q.waiting[next]) == 0 {
		q.waiting[next] = nil
	}
	q.passed[next] = 0
	for p := next + 1; p < priorities; p++ {
		if len(q.waiting[p]) > 0 {
			q.passed[p]++
		}
	}
	q.mu.Unlock()
	q.taken.Notify()
	return m
}
