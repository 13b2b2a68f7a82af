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

// routes are what the parts of edged serve on the node's ports, beside what package server has of its own. A part that
// serves something adds its routes here.
func (e *Edged) routes() []server.Route {
	return slices.Concat(e.apiRoutes(), e.statsRoutes(), e.streamRoutes(), e.pageRoutes())
}

// registry is what /metrics tells.
func (e *Edged) registry() *prometheus.Registry {
	registry := server.NewRegistry(e.opts.NodeName, e, e.health)
	for _, c := range slices.Concat(e.opts.Collectors, []prometheus.Collector{e.csi, e.evictions, e.preemptions}, e.garbage.Collectors()) {
		if err := registry.Register(c); err != nil {
			klog.ErrorS(err, "Metrics left out")
		}
	}
	return registry
}

// serve serves the read-only port, and tries again while its address is taken.
func (e *Edged) serve(ctx context.Context) error {
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
