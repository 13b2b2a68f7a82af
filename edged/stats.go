package edged

import (
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/server"
	"github.com/edgecore-io/edgecore/edged/stats"
)

// This file is how the figures of the node are brought together with the rest.

// newStats makes what tells how much the node and its pods use.
func (e *Edged) newStats() *stats.Stats {
	return stats.New(stats.Options{
		NodeName: e.opts.NodeName, System: e.system, RootDir: e.opts.RootDir, LogsDir: e.opts.PodLogsDir,
		Pods: e.Pods, Runtime: e.client, Images: e.client.Images,
		PodCgroup: e.cgroups.PodDirs, PodsCgroup: e.cgroups.PodsDirs,
		Volumes: e.volumes.MeasureVolumes, LogDir: e.runtime.LogDir, Claims: e.csi.Usages,
		HostsFile: func(pod *v1.Pod) string { return filepath.Join(e.podDir(pod.UID), "etc-hosts") },
	})
}

// statsRoutes are what the ports tell of usage. Who may read a resource of the node may read its figures.
func (e *Edged) statsRoutes() []server.Route {
	return []server.Route{
		{Pattern: "/stats/summary", Handler: stats.SummaryHandler(e.stats), ReadOnly: true, Resource: "stats"},
		{Pattern: "/stats/summary/{$}", Handler: stats.SummaryHandler(e.stats), ReadOnly: true, Resource: "stats"},
		{Pattern: "/metrics/resource", Handler: stats.MetricsHandler(e.stats.Resource()), ReadOnly: true, Resource: "metrics"},
		{Pattern: "/metrics/cadvisor", Handler: stats.MetricsHandler(e.stats.Cadvisor()), ReadOnly: true, Resource: "metrics"},
		{Pattern: "/metrics/probes", Handler: stats.MetricsHandler(e.prober), ReadOnly: true, Resource: "metrics"},
	}
}
