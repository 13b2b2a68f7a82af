package edged

import (
	"context"
	"path/filepath"
	"slices"

	"github.com/edgecore-io/edgecore/edged/serve/api"
	"github.com/edgecore-io/edgecore/edged/serve/server"
	"github.com/edgecore-io/edgecore/edged/serve/streaming"
)

// ports are the node's own.
type ports struct {
	api     *api.API // nil without an authenticated port
	streams *streaming.Server
	slis    *server.SLIs
	shown   *api.Node
}

func (e *Edged) buildPorts(ctx context.Context) {
	o := &e.opts
	e.shown = e.newShown()
	e.api = e.newAPI()
	most := e.maxOpen()
	e.streams = streaming.New(ctx, streaming.Options{Node: e.shown, Runtime: e.containers.Client, Watcher: o.Watcher,
		IdleTimeout: o.StreamIdle, MaxStreams: most, MaxLogs: most})
	e.slis = server.NewSLIs()
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

// newShown makes what answers for the node.
func (e *Edged) newShown() *api.Node {
	o := &e.opts
	return &api.Node{
		Desired:  e.podstate.Desired,
		Statuses: e.podstate.Statuses,
		PLEG:     e.containers.PLEG,
		Recent:   e.podstate.Recorder.List,
		Usage:    e.node.Stats.Node,
		LogsOf:   e.containers.Runtime.LogDir,
		Link:     o.Link,
		Served:   o.Devices,
		Runtime:  e.containers.RuntimeVersion.Get,
		Health:   e.opts.Health,
		Began:    e.podstate.Began,
		Static: server.Info{
			NodeName:      o.NodeName,
			Version:       o.Version,
			Endpoint:      o.RuntimeEndpoint,
			Store:         o.StorePath,
			StaticPodPath: o.StaticPodDir,
			PodLogsDir:    o.PodLogsDir,
		},
	}
}
