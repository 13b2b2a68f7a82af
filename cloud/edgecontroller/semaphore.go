package edgecontroller

import (
	"context"
	"time"
)

// How many requests cloudcore has at the API server at the same time for nodes. More are no faster there: beyond what
// it does beside each other they only wait, time out, and are made again, so that an API server that is slow for a
// moment never gets out from under them. They wait here instead, before their time begins.
const (
	// maxRequests are for what nodes ask for and report, maxLeases for the leases: neither waits for the other.
	maxRequests = 128
	maxLeases   = 32
)

// acquireTimeout is how long at most anything waits for a place; requests of nodes have less time.
const acquireTimeout = time.Minute

// semaphore are as many as a channel has room.
type semaphore chan struct{}

// acquire waits for a place; leave gives it back.
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
