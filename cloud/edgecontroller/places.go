package edgecontroller

import (
	"context"
	"time"
)

// How many requests cloudcore has at the API server at the same time for nodes. More are no faster there: beyond what
// it does beside each other they only wait, time out, and are made again, so that an API server that is slow for a
// moment never gets out from under them. They wait here instead, before their time begins.
const (
	// requestPlaces are for what nodes ask for and report, leasePlaces for the leases: neither waits for the other.
	requestPlaces = 128
	leasePlaces   = 32
)

// placeWait is how long at most anything waits for a place; requests of nodes have less time.
const placeWait = time.Minute

// semaphore are as many as a channel has room.
type semaphore chan struct{}

// take waits for a place; leave gives it back.
func (p semaphore) take(ctx context.Context) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, placeWait)
	defer cancel()
	select {
	case p <- struct{}{}:
		return func() { <-p }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
