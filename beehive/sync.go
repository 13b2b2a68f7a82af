package beehive

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/edgecore-io/edgecore/beehive/model"
)

// waiters are those who wait for answers, by the id of their request.
type waiters struct {
	mu   sync.Mutex
	byID map[string]*waiter
	// spare holds waiters for the next requests: one request is one map entry and no garbage.
	spare sync.Pool
}

// waiter has room for every answer that may come, so that SendResp never waits.
type waiter struct {
	answers chan *model.Message
	left    int
}

// expect makes the place for the answers to a request.
func (w *waiters) expect(id string, answers int) (*waiter, error) {
	one, ok := w.spare.Get().(*waiter)
	if !ok || cap(one.answers) < answers {
		one = &waiter{answers: make(chan *model.Message, answers)}
	}
	one.left = answers
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byID[id] != nil {
		return nil, fmt.Errorf("message id %q is in use by another request", id)
	}
	w.byID[id] = one
	return one, nil
}

// end takes the place away again.
func (w *waiters) end(id string, one *waiter) {
	w.mu.Lock()
	delete(w.byID, id)
	w.mu.Unlock()
	for {
		select {
		case <-one.answers: // came too late
		default:
			w.spare.Put(one)
			return
		}
	}
}

// SendSync sends a request and waits for its answer: until ctx ends, or for the default limit when ctx
// has no deadline.
func (b *Bus) SendSync(ctx context.Context, module string, m *model.Message) (*model.Message, error) {
	mem, err := b.member(module)
	if err != nil {
		return nil, err
	}
	ctx, cancel := b.bounded(ctx)
	defer cancel()
	w, err := b.waiters.expect(m.Header.ID, 1)
	if err != nil {
		return nil, err
	}
	defer b.waiters.end(m.Header.ID, w)
	if err := b.put(ctx, mem, m); err != nil {
		return nil, err
	}
	select {
	case answer := <-w.answers:
		return answer, nil
	case <-mem.removed:
		return nil, fmt.Errorf("%s %s at %q: %w", m.Route.Operation, m.Route.Resource, module, ErrRemoved)
	case <-ctx.Done():
		return nil, fmt.Errorf("%s %s: no answer from %q: %w", m.Route.Operation, m.Route.Resource, module, ctx.Err())
	}
}

// SendToGroupSync sends a request to all modules of a group and waits for an answer of each. With an error
// come the answers that were there by then.
func (b *Bus) SendToGroupSync(ctx context.Context, group string, m *model.Message) ([]*model.Message, error) {
	members, err := b.group(group)
	if err != nil {
		return nil, err
	}
	ctx, cancel := b.bounded(ctx)
	defer cancel()
	w, err := b.waiters.expect(m.Header.ID, len(members))
	if err != nil {
		return nil, err
	}
	defer b.waiters.end(m.Header.ID, w)
	want := 0
	var errs []error
	for _, mem := range members {
		if err := b.put(ctx, mem, m); err != nil {
			errs = append(errs, err)
			continue
		}
		want++
	}
	var answers []*model.Message
	for len(answers) < want {
		select {
		case a := <-w.answers:
			answers = append(answers, a)
		case <-ctx.Done():
			return answers, errors.Join(append(errs, fmt.Errorf("%s %s: %d of %d answers from group %q: %w",
				m.Route.Operation, m.Route.Resource, len(answers), want, group, ctx.Err()))...)
		}
	}
	return answers, errors.Join(errs...)
}

// SendResp hands an answer to whoever waits for it. It never waits.
func (b *Bus) SendResp(_ context.Context, m *model.Message) error {
	b.waiters.mu.Lock()
	defer b.waiters.mu.Unlock()
	w := b.waiters.byID[m.Header.ParentID]
	if w == nil || w.left == 0 {
		return fmt.Errorf("answer to %q about %s: %w", m.Header.ParentID, m.Route.Resource, ErrNoWaiter)
	}
	w.left--
	w.answers <- m // there is room: one place for each answer
	return nil
}
