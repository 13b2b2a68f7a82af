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
