package edged

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/server"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// routes returns what the parts serve on the node's ports, beside what package server has of its own.
func (e *Edged) routes() []server.Route {
	var all []server.Route
	for _, p := range e.list {
		all = append(all, p.routes...)
	}
	return all
}

// registry returns what /metrics serves.
func (e *Edged) registry() *prometheus.Registry {
	registry := server.NewRegistry(e.opts.NodeName, e, e.health)
	all := slices.Clone(e.opts.Collectors)
	for _, p := range e.list {
		all = append(all, p.collectors...)
	}
	for _, c := range all {
		if err := registry.Register(c); err != nil {
			klog.ErrorS(err, "Metrics left out")
		}
	}
	return registry
}

// serve serves the read-only port, if there is one, and tries again while its address is in use.
func (e *Edged) serve(ctx context.Context) error {
	if e.opts.Listen == "" {
		return nil
	}
	handler := server.New(server.Options{Node: e, Registry: e.registry(), SLIs: e.slis, Routes: e.routes()})
	return e.keepServing(ctx, health.ReadOnlyServerStopped, e.opts.Listen, func(ctx context.Context) error {
		return server.Serve(ctx, e.opts.Listen, handler)
	})
}

// keepServing serves a port until ctx ends.
func (e *Edged) keepServing(ctx context.Context, code health.Code, address string, serve func(context.Context) error) error {
	for backoff := retry.NewBackoff(time.Second, 30*time.Second); ; {
		err := serve(ctx)
		if ctx.Err() != nil {
			return nil
		}
		e.health.SetError(code, address, err)
		if !backoff.Wait(ctx) {
			return nil
		}
	}
}
