package api

import (
	"context"
	"time"

	"github.com/edgecore-io/edgecore/edged/serve/server"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// ReadOnly is the port that processes of the device may read without rights.
type ReadOnly struct {
	// Listen is its address; "" disables the port.
	Listen string
	Health *health.Registry
	// Served returns what the port serves. It is called once, by Run.
	Served func() server.Options
}

// Run serves the port until ctx ends, and tries again while its address is in use.
func (r *ReadOnly) Run(ctx context.Context) error {
	if r.Listen == "" {
		return nil
	}
	handler := server.New(r.Served())
	keepOpen(ctx, r.Health, health.ReadOnlyServerStopped, r.Listen, func(ctx context.Context) error {
		return server.Serve(ctx, r.Listen, handler)
	})
	return nil
}

// keepOpen serves a port until ctx ends: it tries again, at growing intervals, whenever serve fails.
func keepOpen(
	ctx context.Context, faults *health.Registry, code health.Code, address string, serve func(context.Context) error,
) {
	for backoff := retry.NewBackoff(time.Second, 30*time.Second); ; {
		err := serve(ctx)
		if ctx.Err() != nil {
			return
		}
		faults.SetError(code, address, err)
		if !backoff.Wait(ctx) {
			return
		}
	}
}
