// Package serve makes the node's ports: what they answer, and the streams that they carry.
package serve

import (
	"context"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/containers"
	"github.com/edgecore-io/edgecore/edged/node"
	"github.com/edgecore-io/edgecore/edged/pods"
	"github.com/edgecore-io/edgecore/edged/podstate"
	"github.com/edgecore-io/edgecore/edged/serve/api"
	"github.com/edgecore-io/edgecore/edged/serve/server"
	"github.com/edgecore-io/edgecore/edged/serve/statusui"
	"github.com/edgecore-io/edgecore/edged/serve/streaming"
	"github.com/edgecore-io/edgecore/pkg/filewatch"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// State is what outlives a run of the agent's module. The zero value is that of a module that has not run.
type State struct {
	// reachedAt is where the cluster reaches the authenticated port, if not at the node's addresses; nil until known.
	reachedAt atomic.Pointer[string]
}

// SetReachedAt sets the address at which the cluster reaches the authenticated port, and reports whether it is another
// one than before. It may be called from any goroutine.
func (s *State) SetReachedAt(address string) bool {
	before := s.reachedAt.Swap(&address)
	return before == nil || *before != address
}

// Options are what the parts need.
type Options struct {
	*State
	// Info is what never changes of the answer to /info.
	Info server.Info
	// Listen is the address of the read-only port; empty is none. API is the authenticated one.
	Listen  string
	API     api.Settings
	RootDir string
	// NotBefore is a time that is over, whatever the clock says.
	NotBefore time.Time
	// Capacity is that of the configuration: so many streams and logs may be open at once as fit to it.
	Capacity v1.ResourceList
	// StreamIdle is how long an exec, attach or port-forward may be silent; 0 is the kubelet's.
	StreamIdle time.Duration
	Watcher    *filewatch.Watcher
	// Link tells how the link to the cloud is; nil where there is none.
	Link func() server.Link
	// Devices are the devices that the node serves, for the status page; nil where there is no such module.
	Devices func() []statusui.Device
	// Cloud: there is a cloud.
	Cloud bool

	Health     *health.Registry
	Self       *node.Self
	PodState   *podstate.Parts
	Containers *containers.Parts
	Node       *node.Parts
	Pods       *pods.Parts
	// Contributed returns what all parts serve and measure. New does not call it.
	Contributed func() ([]server.Route, []prometheus.Collector)
}

// Parts are what New has made.
type Parts struct {
	ReadOnly *api.ReadOnly
	API      *api.API // nil without an authenticated port
	Shown    *api.Node
	Streams  *streaming.Server

	opts Options
	slis *server.SLIs
}

// New makes the parts. It opens no port yet. ctx ends the streams.
func New(ctx context.Context, o Options) *Parts {
	p := &Parts{opts: o, slis: server.NewSLIs()}
	p.Shown = p.newShown()
	p.ReadOnly = &api.ReadOnly{Listen: o.Listen, Health: o.Health, Served: p.Served}
	// maxOpen is how many streams, and how many logs, may be open at once.
	maxOpen := streaming.MaxOpen(o.Capacity.Pods().Value(), o.Capacity.Memory().Value())
	p.API = p.newAPI(maxOpen)
	p.Streams = streaming.New(ctx, streaming.Options{
		Node:        p.Shown,
		Runtime:     o.Containers.Client,
		Watcher:     o.Watcher,
		IdleTimeout: o.StreamIdle,
		MaxStreams:  maxOpen,
		MaxLogs:     maxOpen,
	})
	return p
}

// newShown makes what answers for the node.
func (p *Parts) newShown() *api.Node {
	o := &p.opts
	return &api.Node{
		Desired:  o.PodState.Desired,
		Statuses: o.PodState.Statuses,
		PLEG:     o.Containers.PLEG,
		Recent:   o.PodState.Recorder.List,
		Usage:    o.Node.Stats.Node,
		LogsOf:   o.Containers.Runtime.LogDir,
		Link:     o.Link,
		Served:   o.Devices,
		Runtime:  o.Containers.RuntimeVersion.Get,
		Health:   o.Health,
		Began:    o.PodState.Began,
		Static:   o.Info,
	}
}

// newAPI makes the authenticated port; nil where there is none.
func (p *Parts) newAPI(maxOpen int) *api.API {
	o := api.Options{
		Settings:  p.opts.API,
		NodeName:  p.opts.Info.NodeName,
		RootDir:   p.opts.RootDir,
		IPs:       p.servedAt,
		NotBefore: p.opts.NotBefore,
		Health:    p.opts.Health,
		Served:    p.Served,
		// Streams and logs keep their connections. Probes of metrics and the like find a place beside all of them.
		Connections: 64 + 2*maxOpen,
	}
	if p.opts.Cloud {
		o.Cloud = p.opts.PodState.Meta
	}
	return api.New(o)
}

// servedAt returns the addresses at which the authenticated port is reached.
func (p *Parts) servedAt() []string {
	ips := slices.Clone(p.opts.Self.IPs())
	if at := p.opts.reachedAt.Load(); at != nil && !slices.Contains(ips, *at) {
		ips = append(ips, *at)
	}
	return ips
}

// Served returns what both ports serve: what package server has of its own, and what the parts have.
func (p *Parts) Served() server.Options {
	routes, collectors := p.opts.Contributed()
	registry := server.NewRegistry(p.opts.Info.NodeName, p.Shown, p.opts.Health, collectors...)
	return server.Options{Node: p.Shown, Registry: registry, SLIs: p.slis, Routes: routes}
}

// RunStreams waits until the streams have ended, which they do with ctx.
func (p *Parts) RunStreams(ctx context.Context) error {
	<-ctx.Done()
	p.Streams.Wait()
	return nil
}

// APIRoutes are the paths of the kubelet's API that belong to no other part.
func (p *Parts) APIRoutes() []server.Route {
	return api.Routes(&p.opts.API, &api.Containers{
		All:           p.opts.Containers.PLEG.All,
		Runtime:       p.opts.Containers.Client,
		CheckpointDir: filepath.Join(p.opts.RootDir, "checkpoints"),
	})
}

// PageRoutes is the path of the status page.
func (p *Parts) PageRoutes() []server.Route { return api.PageRoutes(p.Shown) }

// StreamRoutes are the paths of exec, attach, port-forward and logs.
func (p *Parts) StreamRoutes() []server.Route { return api.StreamRoutes(p.Streams) }

// StatsRoutes are the paths of what the node and its pods use, and of the results of probes.
func (p *Parts) StatsRoutes() []server.Route {
	return api.StatsRoutes(p.opts.Node.Stats, p.opts.Pods.Prober)
}
