package edged

import (
	"context"

	"github.com/edgecore-io/edgecore/edged/containers"
	"github.com/edgecore-io/edgecore/edged/node"
	"github.com/edgecore-io/edgecore/edged/pods"
	"github.com/edgecore-io/edgecore/edged/podstate"
	"github.com/edgecore-io/edgecore/edged/serve"
	"github.com/edgecore-io/edgecore/edged/serve/server"
	"github.com/edgecore-io/edgecore/edged/storage"
)

func (e *Edged) podstateOptions() podstate.Options {
	o := &e.opts
	return podstate.Options{
		State:       e.state.podstate,
		Bus:         o.Bus,
		Health:      o.Health,
		NodeName:    o.NodeName,
		Events:      o.Events,
		Adopted:     o.Adopted,
		APIEndpoint: o.APIEndpoint,
		Cloud:       o.Node != nil,
		Linked:      o.Link != nil && o.Link().Connected,
		Busy:        e.busy,
	}
}

func (e *Edged) storageOptions(ctx context.Context) storage.Options {
	o := &e.opts
	return storage.Options{
		NodeName:          o.NodeName,
		RootDir:           o.RootDir,
		Watcher:           o.Watcher,
		Cloud:             o.Node != nil,
		MemoryBytes:       o.Allocatable.Memory().Value(),
		Health:            o.Health,
		Node:              e.self,
		PodState:          e.podstate,
		Workers:           e.workers,
		RecursiveReadOnly: e.recursiveReadOnly(ctx),
		ActivePods:        e.activePods,
	}
}

func (e *Edged) containersOptions() containers.Options {
	o := &e.opts
	return containers.Options{
		State:                &e.state.containers,
		RootDir:              o.RootDir,
		PodLogsDir:           o.PodLogsDir,
		ContainerLogsDir:     o.ContainerLogsDir,
		RuntimeEndpoint:      o.RuntimeEndpoint,
		ImageEndpoint:        o.ImageEndpoint,
		RuntimeTimeout:       o.RuntimeTimeout,
		SeccompDefault:       o.SeccompDefault,
		AllowedUnsafeSysctls: o.AllowedUnsafeSysctls,
		MaxBackoff:           o.MaxBackoff,
		Images:               o.Images,
		Logs:                 o.Logs,
		GC:                   o.GC,
		Cgroups:              o.Cgroups,
		DNS:                  o.DNS,
		Health:               o.Health,
		Node:                 e.self,
		PodState:             e.podstate,
		Workers:              e.workers,
		Storage:              e.storage,
	}
}

func (e *Edged) nodeOptions() node.Options {
	o := &e.opts
	eviction := o.Eviction
	eviction.PodsMemory = o.Cgroups.Pods.Memory
	return node.Options{
		NodeName:     o.NodeName,
		Version:      o.Version,
		RootDir:      o.RootDir,
		PodLogsDir:   o.PodLogsDir,
		Capacity:     o.Capacity,
		Allocatable:  o.Allocatable,
		StatusImages: o.StatusImages,
		Eviction:     eviction,
		ClockBound:   o.ClockBound,
		ClockSet:     o.ClockSet,
		Registration: o.Node,
		Health:       o.Health,
		Self:         e.self,
		PodState:     e.podstate,
		Workers:      e.workers,
		Stopper:      e.workers.Stopper,
		Storage:      e.storage,
		Containers:   e.containers,
		Closed:       e.state.pods.Gate.Closed,
		Endpoints:    e.endpoints,
	}
}

func (e *Edged) podsOptions() pods.Options {
	o := &e.opts
	return pods.Options{
		State:        &e.state.pods,
		Bus:          o.Bus,
		NodeName:     o.NodeName,
		Allocatable:  o.Allocatable,
		Labels:       o.Labels,
		StaticPodDir: o.StaticPodDir,
		FileCheck:    o.FileCheck,
		Watcher:      o.Watcher,
		Shutdown:     o.Shutdown,
		Cloud:        o.Node != nil,
		Health:       o.Health,
		Self:         e.self,
		PodState:     e.podstate,
		Workers:      e.workers,
		Storage:      e.storage,
		Containers:   e.containers,
		Node:         e.node,
		Linked:       e.linked,
	}
}

func (e *Edged) serveOptions() serve.Options {
	o := &e.opts
	return serve.Options{
		State: &e.state.serve,
		Info: server.Info{
			NodeName:      o.NodeName,
			Version:       o.Version,
			Endpoint:      o.RuntimeEndpoint,
			Store:         o.StorePath,
			StaticPodPath: o.StaticPodDir,
			PodLogsDir:    o.PodLogsDir,
		},
		Listen:      o.Listen,
		API:         o.API,
		RootDir:     o.RootDir,
		NotBefore:   o.ClockBound.Time,
		Capacity:    o.Capacity,
		StreamIdle:  o.StreamIdle,
		Watcher:     o.Watcher,
		Link:        o.Link,
		Devices:     o.Devices,
		Cloud:       o.Node != nil,
		Health:      o.Health,
		Self:        e.self,
		PodState:    e.podstate,
		Containers:  e.containers,
		Node:        e.node,
		Pods:        e.pods,
		Contributed: e.contributed,
	}
}
