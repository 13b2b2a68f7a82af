// Package storage makes the parts that give pods volumes and devices.
package storage

import (
	"context"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/podstate"
	"github.com/edgecore-io/edgecore/edged/podstate/env"
	"github.com/edgecore-io/edgecore/edged/storage/csi"
	"github.com/edgecore-io/edgecore/edged/storage/devices"
	"github.com/edgecore-io/edgecore/edged/storage/plugins"
	"github.com/edgecore-io/edgecore/edged/storage/podresources"
	"github.com/edgecore-io/edgecore/edged/storage/volume"
	"github.com/edgecore-io/edgecore/pkg/filewatch"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// Workers sync pods; package podworker implements it.
type Workers interface {
	Enqueue(uid types.UID)
	EnqueueAll()
}

// Node is what the parts ask the node, and how they tell it that its status has changed; package node implements it.
type Node interface {
	// Facts are what pods may ask about the node.
	Facts() env.Facts
	// Wake has the whole status reported again: volumes in use or devices have changed.
	Wake()
}

// Options are what the parts need.
type Options struct {
	NodeName string
	RootDir  string
	Watcher  *filewatch.Watcher
	// Cloud: there is a cloud.
	Cloud bool
	// MemoryBytes is the node's allocatable memory.
	MemoryBytes int64

	Health   *health.Registry
	Node     Node
	PodState *podstate.Parts
	Workers  Workers
	// RecursiveReadOnly reports whether the runtime of a pod supports recursive read-only mounts, and ActivePods lists
	// the pods that have been admitted and have not ended. New calls neither.
	RecursiveReadOnly func(*v1.Pod) bool
	ActivePods        func() []*v1.Pod
}

// Parts are what New has made.
type Parts struct {
	CSI          *csi.Manager
	Plugins      *plugins.Watcher
	Volumes      *volume.Manager
	Devices      *devices.Manager
	PodResources *podresources.Server

	opts Options
}

// New makes the parts.
func New(o Options) *Parts {
	p := &Parts{opts: o}
	p.CSI = p.newCSI()
	p.Devices = devices.New(devices.Options{
		Dir:       filepath.Join(o.RootDir, "device-plugins"),
		Changed:   p.devicesChanged,
		Listening: p.listening,
	})
	p.Plugins = plugins.New(filepath.Join(o.RootDir, "plugins_registry"), o.Watcher, map[string]plugins.Handler{
		plugins.TypeCSI:    p.CSI,
		plugins.TypeDevice: p.Devices,
	})
	objects := o.PodState.Objects
	p.Volumes = volume.New(volume.Options{
		Root:              o.RootDir,
		Objects:           o.PodState.Meta,
		Tokens:            objects,
		Fields:            &env.Fields{Facts: o.Node.Facts},
		Claims:            objects,
		Bundles:           objects,
		Selects:           objects.Selects,
		RecursiveReadOnly: o.RecursiveReadOnly,
		Driver:            p.CSI,
		MemoryBytes:       o.MemoryBytes,
		APIEndpoint:       o.PodState.APIEndpoint,
	})
	p.PodResources = podresources.New(podresources.Options{
		Dir:       filepath.Join(o.RootDir, "pod-resources"),
		Pods:      o.ActivePods,
		Devices:   p.Devices,
		Listening: p.listening,
	})
	return p
}

func (p *Parts) newCSI() *csi.Manager {
	objects := p.opts.PodState.Objects
	o := csi.Options{
		Root:     p.opts.RootDir,
		NodeName: p.opts.NodeName,
		Objects:  objects,
		Tokens:   objects,
		Event:    p.opts.PodState.Recorder.Eventf,
		Claims:   objects,
		Grown:    objects.ClaimGrown,
		// The volumes that CSI puts in place are the volume manager's, which is made after it.
		Others:     func(ctx context.Context) []volume.ClaimUsage { return p.Volumes.ClaimUsages(ctx) },
		Registered: p.opts.Workers.EnqueueAll,
		InUse:      p.opts.Node.Wake,
	}
	if p.opts.Cloud {
		o.Cluster = p.opts.PodState.Meta
	}
	return csi.New(o)
}

// devicesChanged is called when devices come, go, or change their health.
func (p *Parts) devicesChanged() {
	p.opts.Node.Wake()
	p.opts.PodState.CapacityFreed.Notify()
	for _, uid := range p.Devices.Pods() {
		p.opts.Workers.Enqueue(uid)
	}
}

// listening is called when a socket cannot be opened, with the error, and when it is.
func (p *Parts) listening(socket string, err error) {
	p.opts.Health.SetError(health.SocketFailing, socket, err)
}
