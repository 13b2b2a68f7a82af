package edgecontroller

import (
	"context"
	"time"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// Limits on concurrent requests to the API server for nodes. Beyond what it handles in parallel, requests only wait
// there, time out and are repeated, so that a briefly slow API server would never recover. Here they wait before their
// time starts.
const (
	// maxRequests is for nodes' requests and reports, maxLeases for leases: neither waits for the other.
	maxRequests = 128
	maxLeases   = 32
)

// acquireTimeout is the longest wait for the semaphore; requests of nodes have less time.
const acquireTimeout = time.Minute

// semaphore allows as many holders as its channel has room.
type semaphore chan struct{}

// acquire waits for room in the semaphore; leave releases it.
func (p semaphore) acquire(ctx context.Context) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, acquireTimeout)
	defer cancel()
	select {
	case p <- struct{}{}:
		return func() { <-p }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// slot is a request's place in a semaphore. Only the request's goroutine uses it.
type slot struct {
	of    semaphore
	leave func()
}

// acquire waits for a place; it does nothing if the request has one.
func (s *slot) acquire(ctx context.Context) (err error) {
	if s.leave == nil {
		s.leave, err = s.of.acquire(ctx)
	}
	return err
}

// release returns the place, if the request has one.
func (s *slot) release() {
	if s.leave != nil {
		s.leave()
		s.leave = nil
	}
}

type slotKey struct{}

func withSlot(ctx context.Context, s *slot) context.Context {
	return context.WithValue(ctx, slotKey{}, s)
}

// pause waits for d. Meanwhile it releases the slot of ctx and the hub's worker, so that other requests can run. It
// returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	if s, ok := ctx.Value(slotKey{}).(*slot); ok {
		s.release()
		return sleep(ctx, d) && s.acquire(ctx) == nil
	}
	return sleep(ctx, d)
}

func sleep(ctx context.Context, d time.Duration) bool {
	resume := cloudhub.Pause(ctx)
	defer resume()
	return retry.Sleep(ctx, d)
}
