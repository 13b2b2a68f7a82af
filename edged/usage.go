package edged

import (
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/node/node"
	"github.com/edgecore-io/edgecore/edged/node/nodepressure"
	"github.com/edgecore-io/edgecore/edged/node/stats"
	"github.com/edgecore-io/edgecore/edged/node/storagelimit"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/edged/serve/api"
	"github.com/edgecore-io/edgecore/edged/serve/server"
	"github.com/edgecore-io/edgecore/pkg/version"
)

// usage is how much the node and its pods use, and what is done when that is too much.
type usage struct {
	system   v1.NodeSystemInfo
	shown    *api.Node
	stats    *stats.Stats
	pressure *nodepressure.Manager
	limits   *storagelimit.Manager
}

func (e *Edged) buildUsage() {
	e.system = node.System(version.Kubernetes() + "-edgecore-" + e.opts.Version)
	e.stats = stats.New(stats.Options{
		NodeName:   e.opts.NodeName,
		System:     e.system,
		RootDir:    e.opts.RootDir,
		LogsDir:    e.opts.PodLogsDir,
		Pods:       e.podstate.Pods,
		Runtime:    e.containers.Client,
		Images:     e.containers.Client.Images,
		PodCgroup:  e.containers.Cgroups.PodDirs,
		PodsCgroup: e.containers.Cgroups.PodsDirs,
		Volumes:    e.storage.Volumes.MeasureVolumes,
		LogDir:     e.containers.Runtime.LogDir,
		Claims:     e.storage.CSI.Usages,
		Files:      e.containers.PodFiles,
	})
	e.shown = e.newShown()
	settings := e.opts.Eviction
	settings.PodsMemory = e.opts.Cgroups.Pods.Memory
	e.pressure = nodepressure.New(nodepressure.Options{
		Settings: settings,
		Desired:  e.podstate.Desired,
		Stats:    e.stats,
		PLEG:     e.containers.PLEG,
		Statuses: e.podstate.Statuses,
		Cgroups:  e.containers.Cgroups,
		Stopper:  e.workers.Stopper,
		Garbage:  e.containers.Garbage,
		Recorder: e.podstate.Recorder,
		Health:   e.opts.Health,
		Changed: func() {
			e.self.Look()
			e.podstate.CapacityFreed.Notify()
		},
	})
	e.limits = storagelimit.New(storagelimit.Options{
		Desired: e.podstate.Desired,
		Phase:   e.podstate.Statuses.Phase,
		Node:    e.stats.Node,
		Volumes: e.storage.Volumes.Usage,
		Runtime: e.containers.Client,
		Files:   e.containers.PodFiles,
		LogDir:  e.containers.Runtime.LogDir,
		Stop:    func(pod *v1.Pod, why status.Stopped) { e.workers.Stopper.Stop(pod, why, nil) },
		Evicted: e.pressure.Count,
	})
}

// newShown makes what answers for the node.
func (e *Edged) newShown() *api.Node {
	o := &e.opts
	return &api.Node{
		Desired:  e.podstate.Desired,
		Statuses: e.podstate.Statuses,
		PLEG:     e.containers.PLEG,
		Recent:   e.podstate.Recorder.List,
		Usage:    e.stats.Node,
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
