package edged

import (
	"context"
	"path/filepath"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/api"
	"github.com/edgecore-io/edgecore/edged/env"
	"github.com/edgecore-io/edgecore/edged/server"
	"github.com/edgecore-io/edgecore/edged/stats"
)

// This file is what the node's ports show, and who serves them.

// newAPI makes the authenticated port; nil where there is none.
func (e *Edged) newAPI() *api.API {
	o := api.Options{
		Settings:  e.opts.API,
		NodeName:  e.opts.NodeName,
		RootDir:   e.opts.RootDir,
		IPs:       e.addresses.IPs,
		NotBefore: e.opts.ClockBound.Time,
		Health:    e.health,
		Served:    e.served,
	}
	if e.opts.Node != nil {
		o.Cloud = e.meta
	}
	return api.New(o)
}

// newShown makes what answers for the node.
func (e *Edged) newShown() *api.Node {
	o := &e.opts
	return &api.Node{
		Desired:  e.desired,
		Statuses: e.statuses,
		PLEG:     e.pleg,
		Recent:   e.recorder.List,
		Usage:    func(ctx context.Context) (stats.NodeUsage, error) { return e.stats.Node(ctx) },
		LogsOf:   e.runtime.LogDir,
		Link:     o.Link,
		Runtime:  e.runtimeVersion.Get,
		Health:   e.health,
		Began:    e.began,
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

// containers answers what the API is asked about containers.
func (e *Edged) containers() *api.Containers {
	return &api.Containers{
		All:           e.pleg.All,
		Runtime:       e.client,
		CheckpointDir: filepath.Join(e.opts.RootDir, "checkpoints"),
	}
}

// served is what both ports serve.
func (e *Edged) served() server.Options {
	return server.Options{Node: e.shown, Registry: e.registry(), SLIs: e.slis, Routes: e.routes()}
}

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
	registry := server.NewRegistry(e.opts.NodeName, e.shown, e.health)
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

// endStreams waits until the streams have ended, which ctx has them do.
func (e *Edged) endStreams(ctx context.Context) error {
	<-ctx.Done()
	e.streams.Wait()
	return nil
}

// newStats makes what tells how much the node and its pods use.
func (e *Edged) newStats() *stats.Stats {
	return stats.New(stats.Options{
		NodeName:   e.opts.NodeName,
		System:     e.system,
		RootDir:    e.opts.RootDir,
		LogsDir:    e.opts.PodLogsDir,
		Pods:       e.shown.Pods,
		Runtime:    e.client,
		Images:     e.client.Images,
		PodCgroup:  e.cgroups.PodDirs,
		PodsCgroup: e.cgroups.PodsDirs,
		Volumes:    e.volumes.MeasureVolumes,
		LogDir:     e.runtime.LogDir,
		Claims:     e.csi.Usages,
		HostsFile:  func(pod *v1.Pod) string { return filepath.Join(e.podDir(pod.UID), "etc-hosts") },
	})
}

func (e *Edged) facts() env.Facts {
	return env.Facts{HostIPs: e.addresses.IPs(), NodeName: e.opts.NodeName, Allocatable: e.opts.Allocatable}
}
