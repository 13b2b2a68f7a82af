package edgecontroller

import (
	"context"
	"time"
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
