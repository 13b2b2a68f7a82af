package cloudhub

import (
	"context"
	"time"
)

type arrivalKey struct{}

// WithArrival returns the context of a request that came from its node at that time.
func WithArrival(ctx context.Context, at time.Time) context.Context {
	return context.WithValue(ctx, arrivalKey{}, at)
}

// Arrival returns when the request of a context came from its node, before it waited for its turn in the hub; ok is
// false in other contexts.
func Arrival(ctx context.Context) (at time.Time, ok bool) {
	at, ok = ctx.Value(arrivalKey{}).(time.Time)
	return at, ok
}
