package edged

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/node/node"
	"github.com/edgecore-io/edgecore/edged/node/nodestatus"
	"github.com/edgecore-io/edgecore/edged/serve/api"
	"github.com/edgecore-io/edgecore/edged/serve/server"
	"github.com/edgecore-io/edgecore/edged/serve/streaming"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// ports is how others see the node: the Node in the cluster, and the node's own ports.
type ports struct {
	api        *api.API // nil without an authenticated port
	streams    *streaming.Server
	slis       *server.SLIs
	nodeStatus *nodestatus.Manager
	node       *node.Node // nil without a cloud
	// reported are the addresses in the newest status that the API server has accepted; the node's goroutine has them.
	reported []v1.NodeAddress
}

func (e *Edged) buildPorts(ctx context.Context) {
	o := &e.opts
	e.api = e.newAPI()
	most := e.maxOpen()
	e.streams = streaming.New(ctx, streaming.Options{Node: e.shown, Runtime: e.containers.Client, Watcher: o.Watcher,
		IdleTimeout: o.StreamIdle, MaxStreams: most, MaxLogs: most})
	e.slis = server.NewSLIs()
	e.nodeStatus = nodestatus.New(nodestatus.Options{
		Context:      ctx,
		NodeName:     o.NodeName,
		System:       e.system,
		Capacity:     o.Capacity,
		Allocatable:  o.Allocatable,
		Devices:      e.storage.Devices.Capacity,
		Addresses:    e.self.Addresses,
		Runtime:      e.containers.RuntimeVersion.Get,
		Features:     e.containers.Runtime.Known,
		Answers:      e.containers.PLEG.Healthy,
		Images:       e.containers.Client.Images,
		MaxImages:    o.StatusImages,
		VolumesInUse: e.storage.CSI.VolumesInUse,
		Endpoints:    e.api.Endpoints,
		Pressures:    e.pressure.NodeConditions,
		Health:       e.opts.Health,
		Recorder:     e.podstate.Recorder,
	})
	if o.Node != nil {
		opts := *o.Node
		opts.Name, opts.Status, opts.Signals = o.NodeName, e.nodeStatus.Status, e.self.Signals
		opts.Unready = func() error { return e.containers.RuntimeStatus.Unready(e.state.pods.Gate.Closed()) }
		opts.Conditions, opts.Changed, opts.Found = e.nodeStatus.Conditions, e.nodeStatus.Changed, e.nodeStatus.Found
		opts.Forgotten, opts.Reported = e.storage.Devices.Forgotten, e.statusReported
		opts.LabelsLeftOut = func(keys []string) {
			if len(keys) == 0 {
				e.opts.Health.Clear(health.LabelsLeftOut, "")
			} else {
				e.opts.Health.Set(health.LabelsLeftOut, "", strings.Join(keys, ", "))
			}
		}
		e.node = node.New(e.podstate.Meta, opts)
	}
}

// maxOpen is how many streams, and how many logs, may be open at once.
func (e *Edged) maxOpen() int {
	return streaming.MaxOpen(e.opts.Capacity.Pods().Value(), e.opts.Capacity.Memory().Value())
}

// newAPI makes the authenticated port; nil where there is none.
func (e *Edged) newAPI() *api.API {
	o := api.Options{
		Settings:  e.opts.API,
		NodeName:  e.opts.NodeName,
		RootDir:   e.opts.RootDir,
		IPs:       e.servedAt,
		NotBefore: e.opts.ClockBound.Time,
		Health:    e.opts.Health,
		Served:    e.served,
		// Streams and logs keep their connections. Probes of metrics and the like find a place beside all of them.
		Connections: 64 + 2*e.maxOpen(),
	}
	if e.opts.Node != nil {
		o.Cloud = e.podstate.Meta
	}
	return api.New(o)
}

// servedAt returns the addresses at which the authenticated port is reached.
func (e *Edged) servedAt() []string {
	ips := slices.Clone(e.self.IPs())
	if at := e.state.reachedAt.Load(); at != nil && !slices.Contains(ips, *at) {
		ips = append(ips, *at)
	}
	return ips
}

// served returns what both ports serve: what package server has of its own, and what the parts have.
func (e *Edged) served() server.Options {
	var routes []server.Route
	collectors := slices.Clone(e.opts.Collectors)
	for _, p := range e.list {
		routes, collectors = append(routes, p.routes...), append(collectors, p.collectors...)
	}
	registry := server.NewRegistry(e.opts.NodeName, e.shown, e.opts.Health, collectors...)
	routes = append(routes, e.opts.Routes...)
	return server.Options{Node: e.shown, Registry: registry, SLIs: e.slis, Routes: routes}
}

// apiRoutes are the paths of the kubelet's API that belong to no other part.
func (e *Edged) apiRoutes() []server.Route {
	return api.Routes(&e.opts.API, &api.Containers{
		All:           e.containers.PLEG.All,
		Runtime:       e.containers.Client,
		CheckpointDir: filepath.Join(e.opts.RootDir, "checkpoints"),
	})
}

// endStreams waits until the streams have ended, which they do with ctx.
func (e *Edged) endStreams(ctx context.Context) error {
	<-ctx.Done()
	e.streams.Wait()
	return nil
}

// runNode keeps the Node, if there is a cloud.
func (e *Edged) runNode(ctx context.Context) error {
	if e.node == nil {
		return nil
	}
	// By this event, cloudcore distinguishes an agent that starts from a link that comes back.
	e.podstate.Recorder.NodeEventf(v1.EventTypeNormal, "Starting", "Starting kubelet.")
	return e.node.Run(ctx)
}

// statusReported is called with each status that the API server has accepted.
func (e *Edged) statusReported(status *v1.NodeStatus) {
	e.storage.Devices.Remember()
	e.storage.CSI.ReportedInUse(status.VolumesInUse)
	if e.reported != nil && !slices.Equal(e.reported, status.Addresses) {
		e.workers.EnqueueAll() // the statuses of pods have the node's addresses
	}
	e.reported = status.Addresses
}

// clockSet is called when the clock was set.
func (e *Edged) clockSet() {
	if e.opts.ClockSet != nil {
		e.opts.ClockSet()
	}
	e.self.Wake()
	e.workers.EnqueueAll() // tokens may have to be renewed by the clock of now
}
