package cloudhub

import (
	"context"
	"time"
)

type arrivalKey struct{}

// WithArrival returns a context that carries the time at which a node's request arrived.
func WithArrival(ctx context.Context, at time.Time) context.Context {
	return context.WithValue(ctx, arrivalKey{}, at)
}

// Arrival returns when the request of ctx arrived from its node, before it waited in the hub. ok is false if ctx has no
// arrival time.
func Arrival(ctx context.Context) (at time.Time, ok bool) {
	at, ok = ctx.Value(arrivalKey{}).(time.Time)
	return at, ok
}

type pauseKey struct{}

// withPause returns a context for a request that frees its worker while it is paused.
func withPause(ctx context.Context, pause func() (resume func())) context.Context {
	return context.WithValue(ctx, pauseKey{}, pause)
}

// Pause frees the worker that handles the request of ctx, so that another request of the node is handled meanwhile.
// Upstream.Handle calls it before it waits, and resume afterwards.
func Pause(ctx context.Context) (resume func()) {
	if pause, ok := ctx.Value(pauseKey{}).(func() func()); ok {
		return pause()
	}
	return func() {}
}
