package edgehub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/beehive/model"
)

// errNotConnected answers messages that cannot be sent.
var errNotConnected = errors.New("not connected to the cloud")

// receiveAll queues modules' messages until ctx ends.
func (m *Module) receiveAll(ctx context.Context) error {
	for m.queue.room(ctx) {
		msg, err := m.bus.Receive(ctx, m.Name())
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		m.queue.enqueue(msg)
	}
	return nil
}

// sendAll sends the queued messages until ctx ends. It takes a message from the queue only when the rate limit allows,
// so that more urgent messages that arrive meanwhile go first.
func (m *Module) sendAll(ctx context.Context) {
	for m.queue.wait(ctx) {
		s := m.session()
		err := errNotConnected
		if s != nil {
			err = s.mayWrite()
		}
		msgs := m.queue.pop()
		if err == nil {
			s.write(msgs, func(msg *model.Message, err error) { m.refuse(ctx, msg, err) })
			continue
		}
		for _, msg := range msgs {
			m.refuse(ctx, msg, err)
		}
	}
}

// refuse answers a request that did not reach the cloud. An answer without a waiter is not an error.
func (m *Module) refuse(ctx context.Context, msg *model.Message, cause error) {
	if msg.IsResponse() {
		klog.V(2).InfoS("Response to the cloud not sent", "resource", msg.Route.Resource, "err", cause)
		return
	}
	err := m.bus.SendResp(ctx, msg.RespondError(m.Name(), cause))
	if err != nil && !errors.Is(err, beehive.ErrNoWaiter) && ctx.Err() == nil {
		klog.ErrorS(err, "Request not answered", "resource", msg.Route.Resource, "operation", msg.Route.Operation)
	}
}

// maxRequests is how many unanswered requests are remembered. Some never get an answer (events).
const maxRequests = 512

// requests are those that the cloud has not answered.
type requests struct {
	mu    sync.Mutex
	byID  map[string]*model.Message
	order []string
	over  bool
}

// add remembers a request; it returns false if the link has ended.
func (r *requests) add(msg *model.Message) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return false
	}
	if r.byID == nil {
		r.byID = map[string]*model.Message{}
	}
	if len(r.order) >= maxRequests {
		r.order = slices.DeleteFunc(r.order, func(id string) bool { return r.byID[id] == nil })
		for len(r.order) >= maxRequests {
			delete(r.byID, r.order[0])
			r.order = r.order[1:]
		}
	}
	// Without its content, which may be large.
	r.byID[msg.Header.ID] = &model.Message{Header: msg.Header, Route: msg.Route}
	r.order = append(r.order, msg.Header.ID)
	return true
}

// forget forgets a request.
func (r *requests) forget(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byID, id)
}

// drain returns the remaining requests in the order in which they were sent; add fails afterwards.
func (r *requests) drain() []*model.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	var left []*model.Message
	for _, id := range r.order {
		if msg := r.byID[id]; msg != nil {
			left = append(left, msg)
		}
	}
	r.byID, r.order = nil, nil
	return left
}

// linkLost returns the error for a request whose link ended before its answer.
func linkLost(cause error) error {
	if cause == nil {
		return fmt.Errorf("%w: the link ended before the answer came", errNotConnected)
	}
	return fmt.Errorf("%w: the link ended before the answer came: %w", errNotConnected, cause)
}
