package beehive

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/edgecore-io/edgecore/beehive/model"
)

// waiters holds the callers that wait for answers, by request id.
type waiters struct {
	mu   sync.Mutex
	byID map[string]*waiter
	// spare recycles waiters: a request costs one map entry and no garbage.
	spare sync.Pool
}

// waiter has a buffered channel, so that SendResp never blocks.
type waiter struct {
	answer   chan *model.Message
	answered bool
	// limit is the timeout if the context has no deadline; a context would cost more than the rest of a request.
	limit *time.Timer
}

// expect registers a waiter for the answer to a request.
func (w *waiters) expect(id string) (*waiter, error) {
	one, ok := w.spare.Get().(*waiter)
	if !ok {
		one = &waiter{answer: make(chan *model.Message, 1), limit: time.NewTimer(time.Hour)}
		one.limit.Stop()
	}
	one.answered = false
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byID[id] != nil {
		return nil, fmt.Errorf("message id %q is in use by another request", id)
	}
	w.byID[id] = one
	return one, nil
}

// remove removes the waiter.
func (w *waiters) remove(id string, one *waiter) {
	w.mu.Lock()
	delete(w.byID, id)
	w.mu.Unlock()
	select {
	case <-one.answer: // came too late
	default:
	}
	w.spare.Put(one)
}

// SendSync sends a request and waits for its answer: until ctx ends, or for the default limit when ctx
// has no deadline.
func (b *Bus) SendSync(ctx context.Context, module string, m *model.Message) (*model.Message, error) {
	mem, err := b.member(module)
	if err != nil {
		return nil, err
	}
	w, err := b.waiters.expect(m.Header.ID)
	if err != nil {
		return nil, err
	}
	defer b.waiters.remove(m.Header.ID, w)
	if err := b.deliver(ctx, mem, m); err != nil {
		return nil, err
	}
	return b.await(ctx, mem, m, w)
}

// await waits for a module's answer. An answer that has arrived counts, whatever else has ended.
func (b *Bus) await(ctx context.Context, mem *member, m *model.Message, w *waiter) (*model.Message, error) {
	if _, has := ctx.Deadline(); !has {
		w.limit.Reset(b.timeout)
		defer w.limit.Stop()
	}
	var err error
	select {
	case answer := <-w.answer:
		return answer, nil
	case <-mem.removed:
		err = ErrRemoved
	case <-ctx.Done():
		err = ctx.Err()
	case <-w.limit.C:
		err = context.DeadlineExceeded
	}
	select {
	case answer := <-w.answer:
		return answer, nil
	default:
		return nil, fmt.Errorf("%s %s: no answer from %q: %w", m.Route.Operation, m.Route.Resource, mem.module.Name(),
			err)
	}
}

// SendToGroupSync sends a request to all modules of a group and returns their answers, in the order in which the
// modules were added. With an error it returns the answers of the others. Each module gets the request under its own
// id; the answers have m's id as their parent.
func (b *Bus) SendToGroupSync(ctx context.Context, group string, m *model.Message) ([]*model.Message, error) {
	members, err := b.group(group)
	if err != nil {
		return nil, err
	}
	ctx, cancel := b.bounded(ctx)
	defer cancel()
	type request struct {
		mem    *member
		m      *model.Message
		waiter *waiter
	}
	var sent []request
	var errs []error
	for _, mem := range members {
		own := *m
		own.Header.ID = model.NewID()
		w, err := b.waiters.expect(own.Header.ID)
		if err != nil {
			return nil, err
		}
		defer b.waiters.remove(own.Header.ID, w)
		if err := b.deliver(ctx, mem, &own); err != nil {
			errs = append(errs, err)
			continue
		}
		sent = append(sent, request{mem, &own, w})
	}
	var answers []*model.Message
	for _, r := range sent {
		answer, err := b.await(ctx, r.mem, r.m, r.waiter)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		own := *answer
		own.Header.ParentID = m.Header.ID
		answers = append(answers, &own)
	}
	return answers, errors.Join(errs...)
}

// SendResp passes an answer to its waiter. It never blocks.
func (b *Bus) SendResp(_ context.Context, m *model.Message) error {
	b.waiters.mu.Lock()
	defer b.waiters.mu.Unlock()
	w := b.waiters.byID[m.Header.ParentID]
	if w == nil || w.answered {
		return fmt.Errorf("answer to %q about %s: %w", m.Header.ParentID, m.Route.Resource, ErrNoWaiter)
	}
	w.answered = true
	w.answer <- m // buffered
	return nil
}
