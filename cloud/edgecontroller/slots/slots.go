// Package slots limits how many requests to the API server run at a time, and lets a request that has to wait for
// something else leave its slot to others.
package slots

import (
	"context"
	"time"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// acquireTimeout is the longest wait for the semaphore; requests of nodes have less time.
const acquireTimeout = time.Minute

// Semaphore allows as many holders as its channel has room.
type Semaphore chan struct{}

// Acquire waits for room in the semaphore; leave releases it.
func (p Semaphore) Acquire(ctx context.Context) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, acquireTimeout)
	defer cancel()
	select {
	case p <- struct{}{}:
		return func() { <-p }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Slot is a request's place in a semaphore. Only the request's goroutine uses it.
type Slot struct {
	Of    Semaphore
	leave func()
}

// Acquire waits for a place; it does nothing if the request has one.
func (s *Slot) Acquire(ctx context.Context) (err error) {
	if s.leave == nil {
		s.leave, err = s.Of.Acquire(ctx)
	}
	return err
}

// Release returns the place, if the request has one.
func (s *Slot) Release() {
	if s.leave != nil {
		s.leave()
		s.leave = nil
	}
}

type slotKey struct{}

// WithSlot returns a context for Pause.
func WithSlot(ctx context.Context, s *Slot) context.Context {
	return context.WithValue(ctx, slotKey{}, s)
}

// Pause waits for d. Meanwhile it releases the slot of ctx and the hub's worker, so that other requests can run. It
// returns false if ctx ends first.
func Pause(ctx context.Context, d time.Duration) bool {
	if s, ok := ctx.Value(slotKey{}).(*Slot); ok {
		s.Release()
		return sleep(ctx, d) && s.Acquire(ctx) == nil
	}
	return sleep(ctx, d)
}

func sleep(ctx context.Context, d time.Duration) bool {
	resume := cloudhub.Pause(ctx)
	defer resume()
	return retry.Sleep(ctx, d)
}
