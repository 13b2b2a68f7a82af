package edged

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/options"
	"github.com/edgecore-io/edgecore/edged/serve/server"
)

// part is what the root does with one part of edged. All but the name is optional.
type part struct {
	name string
	// run works until ctx ends, or returns early if there is nothing to do. An error ends the run of the module.
	run func(ctx context.Context) error
	// reload takes over other settings. It must not call Module.Reload.
	reload func(*options.Settings)
	// routes are served on the node's ports, collectors on /metrics.
	routes     []server.Route
	collectors []prometheus.Collector
}

// parts lists the parts in the order in which they start. What is served, reloaded and measured follows from this list.
func (e *Edged) parts() []part {
	return []part{
		{name: "read-only server", run: e.serve.ReadOnly.Run},
		{name: "authenticated server", run: e.serve.API.Run, routes: e.serve.APIRoutes()},
		{name: "status page", routes: e.serve.PageRoutes()},
		{name: "status reports", run: e.podstate.Reporter.Run},
		{
			name:   "event reports",
			run:    e.podstate.Events.Run,
			reload: func(s *options.Settings) { e.podstate.Events.Set(s.Events) },
		},
		{name: "streams", run: e.serve.RunStreams, routes: e.serve.StreamRoutes()},
		{name: "node", run: e.node.Run},
		{name: "cgroups", run: func(ctx context.Context) error { return e.containers.Cgroups.Run(ctx, e.opts.Health) }},
		{name: "DNS", reload: func(s *options.Settings) { e.containers.SetDNS(s.DNS) }},
		{name: "CSI drivers", run: e.storage.CSI.Run, collectors: []prometheus.Collector{e.storage.CSI}},
		{name: "plugins", run: e.storage.Plugins.Run},
		{name: "device plugins", run: e.storage.Devices.Run},
		{name: "pod resources", run: e.storage.PodResources.Run},
		{name: "stored pods", run: e.pods.Intake.Load},
		{name: "static pods", run: e.pods.Static.Run},
		{name: "image repairs", run: e.containers.Repairer.Run},
		{name: "image pulls", reload: func(s *options.Settings) { e.containers.Puller.SetPullLimits(s.Pulls) }},
		{
			name:       "containers",
			reload:     func(s *options.Settings) { e.containers.Runtime.SetMaxBackoff(s.MaxBackoff) },
			collectors: []prometheus.Collector{e.containers.Limiter},
		},
		{name: "runtime state", run: e.containers.PLEG.Run},
		{name: "clock", run: e.node.Clock.Run},
		{name: "conditions of the runtime", run: e.containers.RuntimeStatus.Run},
		{name: "probes", run: e.pods.Prober.Run},
		{name: "usage", routes: e.serve.StatsRoutes()},
		{name: "storage limits", run: e.node.Limits.Run},
		{
			name: "evictions",
			run:  e.node.Pressure.Run,
			reload: func(s *options.Settings) {
				e.node.Pressure.Configure(s.Evictions.WithHard(e.opts.Eviction.Config))
			},
			collectors: []prometheus.Collector{e.node.Pressure},
		},
		{
			name:   "log rotation",
			run:    e.containers.Logs.Run,
			reload: func(s *options.Settings) { e.containers.Logs.SetLimits(s.LogSize, s.LogFiles) },
		},
		{name: "mirror pods", run: e.podstate.Mirrors.Run},
		{
			name:       "garbage",
			run:        e.containers.Garbage.Run,
			reload:     func(s *options.Settings) { e.containers.Garbage.SetPolicy(s.GC) },
			collectors: e.containers.Garbage.Collectors(),
		},
		{name: "shutdown of the device", run: e.pods.Shutdown.Run},
		{
			name:       "admission",
			run:        e.pods.Admissions.Run,
			collectors: []prometheus.Collector{e.pods.Admissions.Collector()},
		},
		{name: "pods", run: e.pods.Intake.Run},
		{name: "messages", run: e.pods.Intake.Receive},
	}
}

// run runs the parts until ctx ends or one fails. ctx is the one that build had; cancel ends it.
func (e *Edged) run(ctx context.Context, cancel context.CancelFunc) error {
	defer func() {
		if err := e.containers.Client.Close(); err != nil {
			klog.V(2).InfoS("Connection to the runtime not closed", "err", err)
		}
	}()
	err := runParts(ctx, cancel, e.list)
	e.pods.Admissions.Wait()
	e.workers.Stopper.Wait()
	e.workers.Wait()
	// The newest statuses are stored before the end. Containers go on running.
	flush, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer stop()
	e.podstate.Reporter.FlushAll(flush)
	if err := e.containers.BootRecord.Close(); err != nil {
		klog.V(2).InfoS("Clean shutdown not recorded", "err", err)
	}
	return err
}

// runParts runs parts until ctx ends or one fails, and returns that part's error once all have ended.
func runParts(ctx context.Context, cancel context.CancelFunc, parts []part) error {
	var wg sync.WaitGroup
	failed := make(chan error, len(parts))
	for _, p := range parts {
		if p.run == nil {
			continue
		}
		wg.Go(func() {
			if err := p.run(ctx); err != nil && ctx.Err() == nil {
				failed <- fmt.Errorf("%s: %w", p.name, err)
			}
		})
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	cancel()
	wg.Wait()
	return err
}
