package edgehub

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// priority orders the messages that wait for the link. Those of one priority keep their order.
type priority int

const (
	// tokens is for requests for tokens that may be sent in a batch.
	tokens priority = iota
	// first is for queries that pods wait for (a token, a Secret, a volume), acknowledgements, and the inventory.
	first
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
	// Over a link with batches, an event waits for others for eventGather at most. A request for a token is sent at
	// once, unless another one was sent within tokenGather: the tokens of a burst share batches, and a single pod does
	// not wait.
	eventGather = 100 * time.Millisecond
	tokenGather = 5 * time.Millisecond
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

// isTokenRequest reports whether a message asks for a token of a service account.
func isTokenRequest(m *model.Message) bool {
	if m.Route.Operation != model.OpQuery {
		return false
	}
	key, err := resource.Parse(m.Route.Resource)
	return err == nil && key.Type == resource.TypeServiceAccountToken
}

// sendQueue holds the messages that wait for the link, by priority. So on a slow link, or with a rate limit, the most
// urgent messages are sent first. Over a link with batches, events and requests for tokens are taken together, and wait
// a moment for others. One goroutine calls enqueue, another one wait and take.
type sendQueue struct {
	// added and taken are notified after each put and take.
	added, taken notify.Signal

	mu sync.Mutex
	// batches: the link has batches.
	batches bool
	waiting [priorities][]*model.Message
	// eventSince is when the first of the waiting events came, tokenSent when the last request for a token was taken.
	eventSince, tokenSent time.Time
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

// setBatches says whether the link has batches. Without them, nothing waits for others.
func (q *sendQueue) setBatches(batches bool) {
	q.mu.Lock()
	q.batches = batches
	q.mu.Unlock()
	q.added.Notify()
}

func (q *sendQueue) enqueue(m *model.Message) {
	q.mu.Lock()
	p := priorityOf(m)
	switch {
	case q.batches && isTokenRequest(m):
		p = tokens
	case p == last && len(q.waiting[last]) == 0:
		q.eventSince = time.Now()
	}
	q.waiting[p] = append(q.waiting[p], m)
	q.mu.Unlock()
	q.added.Notify()
}

// gathers returns how long the messages of a priority still wait for others; q.mu is held.
func (q *sendQueue) gathers(p priority, now time.Time) time.Duration {
	switch {
	case !q.batches || len(q.waiting[p]) >= wire.BatchMax:
		return 0
	case p == tokens:
		return tokenGather - now.Sub(q.tokenSent)
	case p == last:
		return eventGather - now.Sub(q.eventSince)
	}
	return 0
}

// next returns the priority that is sent next: the highest one with messages, or one that has been overtaken maxPassed
// times. If there is none, in is when messages that wait for others are due; 0 is never. q.mu is held.
func (q *sendQueue) next(now time.Time) (next priority, in time.Duration) {
	next = priorities
	for p := range priorities {
		if len(q.waiting[p]) == 0 || next != priorities && q.passed[p] < maxPassed {
			continue
		}
		if rest := q.gathers(p, now); rest <= 0 {
			next = p
		} else if in == 0 || rest < in {
			in = rest
		}
	}
	return next, in
}

// wait waits for messages that are due, and returns false if ctx ends first.
func (q *sendQueue) wait(ctx context.Context) bool {
	for ctx.Err() == nil {
		q.mu.Lock()
		next, in := q.next(time.Now())
		q.mu.Unlock()
		if next != priorities {
			return true
		}
		q.waitFor(ctx, in)
	}
	return false
}

// waitFor waits until a message comes, ctx ends, or a time other than 0 is over.
func (q *sendQueue) waitFor(ctx context.Context, d time.Duration) {
	var due <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
	case <-q.added:
	case <-due:
	}
}

// pop removes and returns what is sent next: one message, or over a link with batches all events or requests for
// tokens that fit into one. It returns none if none is due.
func (q *sendQueue) pop() []*model.Message {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	next, _ := q.next(now)
	if next == priorities {
		return nil // the link of now has batches, the one before had none
	}
	n := 1
	if q.batches && (next == tokens || next == last) {
		n = min(len(q.waiting[next]), wire.BatchMax)
	}
	taken := slices.Clone(q.waiting[next][:n])
	clear(q.waiting[next][:n])
	if q.waiting[next] = q.waiting[next][n:]; len(q.waiting[next]) == 0 {
		q.waiting[next] = nil
	}
	if next == tokens {
		q.tokenSent = now
	}
	q.passed[next] = 0
	for p := next + 1; p < priorities; p++ {
		if len(q.waiting[p]) > 0 {
			q.passed[p]++
		}
	}
	q.taken.Notify()
	return taken
}
