package edged

import (
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/containers/runtimestatus"
	"github.com/edgecore-io/edgecore/edged/node/nodepressure"
	"github.com/edgecore-io/edgecore/edged/node/stats"
	"github.com/edgecore-io/edgecore/edged/node/storagelimit"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/edged/serve/api"
	"github.com/edgecore-io/edgecore/edged/serve/server"
)

// usage is how much the node and its pods use, and what is done when that is too much.
type usage struct {
	shown         *api.Node
	stats         *stats.Stats
	pressure      *nodepressure.Manager
	limits        *storagelimit.Manager
	runtimeStatus *runtimestatus.Tracker
}

func (e *Edged) buildUsage() {
	e.stats = stats.New(stats.Options{
		NodeName:   e.opts.NodeName,
		System:     e.system,
		RootDir:    e.opts.RootDir,
		LogsDir:    e.opts.PodLogsDir,
		Pods:       e.podstate.Pods,
		Runtime:    e.client,
		Images:     e.client.Images,
		PodCgroup:  e.cgroups.PodDirs,
		PodsCgroup: e.cgroups.PodsDirs,
		Volumes:    e.storage.Volumes.MeasureVolumes,
		LogDir:     e.runtime.LogDir,
		Claims:     e.storage.CSI.Usages,
		Files:      e.podFiles,
	})
	e.shown = e.newShown()
	settings := e.opts.Eviction
	settings.PodsMemory = e.opts.Cgroups.Pods.Memory
	e.pressure = nodepressure.New(nodepressure.Options{
		Settings: settings,
		Desired:  e.podstate.Desired,
		Stats:    e.stats,
		PLEG:     e.pleg,
		Statuses: e.podstate.Statuses,
		Cgroups:  e.cgroups,
		Stopper:  e.stopper,
		Garbage:  e.garbage,
		Recorder: e.podstate.Recorder,
		Health:   e.health,
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
		Runtime: e.client,
		Files:   e.podFiles,
		LogDir:  e.runtime.LogDir,
		Stop:    func(pod *v1.Pod, why status.Stopped) { e.stopper.Stop(pod, why, nil) },
		Evicted: e.pressure.Count,
	})
	e.runtimeStatus = runtimestatus.New(runtimestatus.Options{
		Runtime: e.runtime,
		Answers: e.pleg.Healthy,
		Health:  e.health,
		Version: &e.runtimeVersion,
		Learned: e.self.Wake,
		Changed: e.self.Look,
		Recovered: func() {
			if e.podstate.Ready.Started() {
				e.pool.EnqueueAll()
			}
		},
	})
}

// newShown makes what answers for the node.
func (e *Edged) newShown() *api.Node {
	o := &e.opts
	return &api.Node{
		Desired:  e.podstate.Desired,
		Statuses: e.podstate.Statuses,
		PLEG:     e.pleg,
		Recent:   e.podstate.Recorder.List,
		Usage:    e.stats.Node,
		LogsOf:   e.runtime.LogDir,
		Link:     o.Link,
		Served:   o.Devices,
		Runtime:  e.runtimeVersion.Get,
		Health:   e.health,
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
