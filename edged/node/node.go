// Package node makes the parts that keep this device as a Node of the cluster: its registration and status, how much of
// it is used, and what happens when it runs short.
package node

import (
	"context"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/containers"
	"github.com/edgecore-io/edgecore/edged/node/node"
	"github.com/edgecore-io/edgecore/edged/node/nodepressure"
	"github.com/edgecore-io/edgecore/edged/node/nodestatus"
	"github.com/edgecore-io/edgecore/edged/node/stats"
	"github.com/edgecore-io/edgecore/edged/node/storagelimit"
	"github.com/edgecore-io/edgecore/edged/podstate"
	"github.com/edgecore-io/edgecore/edged/podstate/clock"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/edged/storage"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/version"
)

// Workers sync pods; package podworker implements it.
type Workers interface{ EnqueueAll() }

// Options are what the parts need.
type Options struct {
	NodeName   string
	Version    string
	RootDir    string
	PodLogsDir string
	// Capacity and Allocatable are those of the configuration.
	Capacity, Allocatable v1.ResourceList
	// StatusImages is how many images the node's status tells of; -1 is all.
	StatusImages int
	// Eviction says when pods are evicted for want of resources.
	Eviction nodepressure.Settings
	// ClockBound is a time that is over; ClockSet, which may be nil, is called when the clock was set.
	ClockBound clock.Bound
	ClockSet   func()
	// Registration says how the node is registered with the cloud; nil without one. New completes a copy.
	Registration *node.Options

	Health     *health.Registry
	Self       *Self
	PodState   *podstate.Parts
	Storage    *storage.Parts
	Containers *containers.Parts
	Workers    Workers
	Stopper    nodepressure.Stopper
	// Closed reports whether nothing may start: the device shuts down.
	Closed func() bool
	// Endpoints are where the cluster finds the node's port. New does not call it.
	Endpoints func() v1.NodeDaemonEndpoints
}

// Parts are what New has made.
type Parts struct {
	Clock    *clock.Keeper
	Stats    *stats.Stats
	Pressure *nodepressure.Manager
	Limits   *storagelimit.Manager
	Status   *nodestatus.Manager
	Node     *node.Node // nil without a cloud

	opts Options
	// reported are the addresses in the newest status that the API server has accepted; the node's goroutine has them.
	reported []v1.NodeAddress
}

// New makes the parts. ctx ends calls to the runtime.
func New(ctx context.Context, o Options) *Parts {
	p := &Parts{opts: o}
	p.Clock = &clock.Keeper{Health: o.Health, Bound: o.ClockBound, Began: o.PodState.Began, Set: p.clockSet}
	system := node.System(version.Kubernetes() + "-edgecore-" + o.Version)
	p.Stats = p.newStats(system)
	p.Pressure = p.newPressure()
	p.Limits = p.newLimits()
	p.Status = p.newStatus(ctx, system)
	if o.Registration != nil {
		p.Node = p.newNode()
	}
	return p
}

// Run keeps the Node, if there is a cloud.
func (p *Parts) Run(ctx context.Context) error {
	if p.Node == nil {
		return nil
	}
	// By this event, cloudcore distinguishes an agent that starts from a link that comes back.
	p.opts.PodState.Recorder.NodeEventf(v1.EventTypeNormal, "Starting", "Starting kubelet.")
	return p.Node.Run(ctx)
}

func (p *Parts) newStats(system v1.NodeSystemInfo) *stats.Stats {
	o := &p.opts
	return stats.New(stats.Options{
		NodeName:   o.NodeName,
		System:     system,
		RootDir:    o.RootDir,
		LogsDir:    o.PodLogsDir,
		Pods:       o.PodState.Pods,
		Runtime:    o.Containers.Client,
		Images:     o.Containers.Client.Images,
		PodCgroup:  o.Containers.Cgroups.PodDirs,
		PodsCgroup: o.Containers.Cgroups.PodsDirs,
		Volumes:    o.Storage.Volumes.MeasureVolumes,
		LogDir:     o.Containers.Runtime.LogDir,
		Claims:     o.Storage.CSI.Usages,
		Files:      o.Containers.PodFiles,
	})
}

func (p *Parts) newPressure() *nodepressure.Manager {
	o := &p.opts
	return nodepressure.New(nodepressure.Options{
		Settings: o.Eviction,
		Desired:  o.PodState.Desired,
		Stats:    p.Stats,
		PLEG:     o.Containers.PLEG,
		Statuses: o.PodState.Statuses,
		Cgroups:  o.Containers.Cgroups,
		Stopper:  o.Stopper,
		Garbage:  o.Containers.Garbage,
		Recorder: o.PodState.Recorder,
		Health:   o.Health,
		Changed: func() {
			o.Self.Look()
			o.PodState.CapacityFreed.Notify()
		},
	})
}

func (p *Parts) newLimits() *storagelimit.Manager {
	o := &p.opts
	return storagelimit.New(storagelimit.Options{
		Desired: o.PodState.Desired,
		Phase:   o.PodState.Statuses.Phase,
		Node:    p.Stats.Node,
		Volumes: o.Storage.Volumes.Usage,
		Runtime: o.Containers.Client,
		Files:   o.Containers.PodFiles,
		LogDir:  o.Containers.Runtime.LogDir,
		Stop:    func(pod *v1.Pod, why status.Stopped) { o.Stopper.Stop(pod, why, nil) },
		Evicted: p.Pressure.Count,
	})
}

func (p *Parts) newStatus(ctx context.Context, system v1.NodeSystemInfo) *nodestatus.Manager {
	o := &p.opts
	return nodestatus.New(nodestatus.Options{
		Context:      ctx,
		NodeName:     o.NodeName,
		System:       system,
		Capacity:     o.Capacity,
		Allocatable:  o.Allocatable,
		Devices:      o.Storage.Devices.Capacity,
		Addresses:    o.Self.Addresses,
		Runtime:      o.Containers.RuntimeVersion.Get,
		Features:     o.Containers.Runtime.Known,
		Answers:      o.Containers.PLEG.Healthy,
		Images:       o.Containers.Client.Images,
		MaxImages:    o.StatusImages,
		VolumesInUse: o.Storage.CSI.VolumesInUse,
		Endpoints:    o.Endpoints,
		Pressures:    p.Pressure.NodeConditions,
		Health:       o.Health,
		Recorder:     o.PodState.Recorder,
	})
}

func (p *Parts) newNode() *node.Node {
	o := &p.opts
	opts := *o.Registration
	opts.Name, opts.Status, opts.Signals = o.NodeName, p.Status.Status, o.Self.Signals
	opts.Unready = func() error { return o.Containers.RuntimeStatus.Unready(o.Closed()) }
	opts.Conditions, opts.Changed, opts.Found = p.Status.Conditions, p.Status.Changed, p.Status.Found
	opts.Forgotten = o.Storage.Devices.Forgotten
	opts.Reported = func(status *v1.NodeStatus) {
		p.statusReported(status)
		if o.Registration.Reported != nil {
			o.Registration.Reported(status)
		}
	}
	opts.LabelsLeftOut = func(keys []string) {
		if len(keys) == 0 {
			o.Health.Clear(health.LabelsLeftOut, "")
		} else {
			o.Health.Set(health.LabelsLeftOut, "", strings.Join(keys, ", "))
		}
	}
	return node.New(o.PodState.Meta, opts)
}

// statusReported is called with each status that the API server has accepted.
func (p *Parts) statusReported(status *v1.NodeStatus) {
	p.opts.Storage.Devices.Remember()
	p.opts.Storage.CSI.ReportedInUse(status.VolumesInUse)
	if p.reported != nil && !slices.Equal(p.reported, status.Addresses) {
		p.opts.Workers.EnqueueAll() // the statuses of pods have the node's addresses
	}
	p.reported = status.Addresses
}

// clockSet is called when the clock was set.
func (p *Parts) clockSet() {
	if p.opts.ClockSet != nil {
		p.opts.ClockSet()
	}
	p.opts.Self.Wake()
	p.opts.Workers.EnqueueAll() // tokens may have to be renewed by the clock of now
}
