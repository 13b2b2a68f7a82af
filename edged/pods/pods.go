// Package pods makes the parts that do something with a pod, from its arrival to its end: it is taken in, admitted and
// synced by its worker, its probes run, and its status is made.
package pods

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers"
	"github.com/edgecore-io/edgecore/edged/node"
	"github.com/edgecore-io/edgecore/edged/pods/allocation"
	"github.com/edgecore-io/edgecore/edged/pods/deadline"
	"github.com/edgecore-io/edgecore/edged/pods/intake"
	"github.com/edgecore-io/edgecore/edged/pods/podadmit"
	"github.com/edgecore-io/edgecore/edged/pods/podstatus"
	"github.com/edgecore-io/edgecore/edged/pods/podsync"
	"github.com/edgecore-io/edgecore/edged/pods/prober"
	"github.com/edgecore-io/edgecore/edged/pods/shutdown"
	"github.com/edgecore-io/edgecore/edged/pods/termination"
	"github.com/edgecore-io/edgecore/edged/podstate"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/source"
	"github.com/edgecore-io/edgecore/edged/storage"
	"github.com/edgecore-io/edgecore/pkg/filewatch"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/version"
)

// State is what outlives a run of the agent's module. The zero value is that of a module that has not run.
type State struct {
	// Results are those of the newest syncs.
	Results podstatus.Results
	// Deadlines are those of pods with activeDeadlineSeconds.
	Deadlines deadline.Tracker
	// Terminations wakes callers that wait for the end of a pod.
	Terminations termination.Waiters
	// Gate is closed while the device shuts down: nothing starts any more.
	Gate shutdown.Gate
}

// Options are what the parts need.
type Options struct {
	*State
	Bus          intake.Bus
	NodeName     string
	Allocatable  v1.ResourceList
	Labels       map[string]string
	StaticPodDir string
	// FileCheck is how often the folder of static pods is read at the latest.
	FileCheck time.Duration
	Watcher   *filewatch.Watcher
	// Shutdown says how long a shutdown of the device waits for which pods.
	Shutdown shutdown.Options
	// Cloud: there is a cloud.
	Cloud bool

	Health     *health.Registry
	Self       *node.Self
	PodState   *podstate.Parts
	Workers    *Workers
	Storage    *storage.Parts
	Containers *containers.Parts
	Node       *node.Parts
	// Linked is called when there is a link to the cloud again. New does not call it.
	Linked func()
}

// Parts are what New has made.
type Parts struct {
	Prober      *prober.Prober
	Allocations *allocation.Manager
	Status      *podstatus.Maker
	Admissions  *podadmit.Controller
	Intake      *intake.Intake
	Static      *source.Static
	Shutdown    *shutdown.Watcher

	opts Options
}

// New makes the parts, and sets what the workers do.
func New(ctx context.Context, o Options) *Parts {
	p := &Parts{opts: o}
	p.Prober = prober.New(prober.Options{
		Exec:      o.Containers.Client,
		Recorder:  o.PodState.Recorder,
		Changed:   p.probeChanged,
		UserAgent: prober.UserAgent(version.Kubernetes()),
	})
	p.Allocations = allocation.New(allocation.Options{
		Runtime:  o.Containers.Client,
		Cgroups:  o.Containers.Cgroups,
		Recorder: o.PodState.Recorder,
		Pods:     allocation.DesiredPods{Desired: o.PodState.Desired, Statuses: o.PodState.Statuses},
		Enqueue:  o.Workers.Enqueue,
		Freed:    o.PodState.CapacityFreed.Notify,
	})
	p.Status = p.newStatus(ctx)
	o.Workers.SetSyncer(p.newSyncer())
	p.Admissions = p.newAdmissions(ctx)
	p.Allocations.SetAdmission(p.Admissions)
	p.Intake = p.newIntake()
	o.Workers.intake = p.Intake
	p.Static = p.newStatic()
	p.Shutdown = p.newShutdown()
	return p
}

func (p *Parts) newStatus(ctx context.Context) *podstatus.Maker {
	o := &p.opts
	return podstatus.New(podstatus.Options{
		Desired:     o.PodState.Desired,
		Statuses:    o.PodState.Statuses,
		Results:     &o.Results,
		PLEG:        o.Containers.PLEG,
		Prober:      p.Prober,
		Allocations: p.Allocations,
		Stopper:     o.Workers.Stopper,
		Devices:     o.Storage.Devices,
		Addresses:   o.Self.Addresses,
		RuntimeName: o.Containers.RuntimeVersion.Name,
		RecursiveReadOnly: func(pod *v1.Pod) bool {
			return o.Containers.Runtime.RecursiveReadOnly(ctx, pod)
		},
	})
}

// newSyncer makes what the workers do.
func (p *Parts) newSyncer() *podsync.Syncer {
	o := &p.opts
	return podsync.New(podsync.Options{
		Desired:       o.PodState.Desired,
		Statuses:      o.PodState.Statuses,
		PodStatus:     p.Status,
		Gate:          &o.Gate,
		Waiters:       &o.Terminations,
		Deadlines:     &o.Deadlines,
		Recorder:      o.PodState.Recorder,
		PLEG:          o.Containers.PLEG,
		Runtime:       o.Containers.Runtime,
		Stopper:       o.Workers.Stopper,
		Allocations:   p.Allocations,
		Volumes:       o.Storage.Volumes,
		Inputs:        o.Containers.Inputs,
		Prober:        p.Prober,
		Store:         o.PodState.Meta,
		Reports:       o.PodState.Reporter,
		PodDir:        o.Containers.PodDir,
		NetworkFor:    o.Containers.RuntimeStatus.NetworkFor,
		Prepared:      o.Node.Limits.Added,
		RemoveCgroup:  o.Containers.Cgroups.RemovePod,
		ReleaseUserNS: o.Containers.UserNS.Release,
		FreeDevices:   o.Storage.Devices.Free,
		ImagesUsed:    o.Containers.Garbage.ImagesUsed,
		Freed:         o.PodState.CapacityFreed.Notify,
	})
}

func (p *Parts) newAdmissions(ctx context.Context) *podadmit.Controller {
	o := &p.opts
	opts := podadmit.Options{
		NodeName:    o.NodeName,
		Allocatable: o.Allocatable,
		Labels:      o.Labels,
		Desired:     o.PodState.Desired,
		Workers:     o.Workers,
		PLEG:        o.Containers.PLEG,
		Statuses:    o.PodState.Statuses,
		Devices:     o.Storage.Devices,
		Stopper:     o.Workers.Stopper,
		Recorder:    o.PodState.Recorder,
		Allocations: p.Allocations,
		Freed:       o.PodState.CapacityFreed,
		Closed:      o.Gate.Closed,
		Pressure:    o.Node.Pressure.Admit,
		Checks: []func(*v1.Pod) *observed.Reason{
			o.Containers.Sysctls.Check,
			o.Containers.Host.CheckAppArmor,
			o.Node.Pressure.Admit,
			o.Containers.CheckGroups,
		},
		Rejected: p.Status.Reject,
	}
	if o.Cloud {
		opts.Node = func(ctx context.Context) (*v1.Node, error) { return o.PodState.Meta.Node(ctx, o.NodeName) }
	}
	return podadmit.New(ctx, opts)
}

func (p *Parts) newIntake() *intake.Intake {
	o := &p.opts
	return intake.New(intake.Options{
		NodeName:    o.NodeName,
		Began:       o.PodState.Began,
		Bus:         o.Bus,
		Store:       o.PodState.Meta,
		Ready:       o.PodState.Ready,
		Desired:     o.PodState.Desired,
		Admission:   p.Admissions,
		Workers:     o.Workers,
		PLEG:        o.Containers.PLEG,
		Statuses:    o.PodState.Statuses,
		Garbage:     o.Containers.Garbage,
		Allocations: p.Allocations,
		Waiters:     &o.Terminations,
		Mirrors:     o.PodState.Mirrors,
		Started:     p.started,
		Freed:       o.PodState.CapacityFreed.Notify,
		Linked:      o.Linked,
		Synced:      func() { o.PodState.Damaged.Store(false) },
	})
}

// newStatic makes the source of static pods.
func (p *Parts) newStatic() *source.Static {
	o := &p.opts
	return source.NewStatic(source.StaticOptions{
		Dir:      o.StaticPodDir,
		Watcher:  o.Watcher,
		NodeName: o.NodeName,
		Rescan:   o.FileCheck,
		Known:    func(pods []*v1.Pod) { o.PodState.Adopted.StaticPods(pods, source.AnnotationHash) },
		Pods:     p.Intake.SetStatic,
		Fault:    func(file string, err error) { o.Health.SetError(health.StaticPodBad, file, err) },
		Warning:  func(file, text string) { klog.InfoS("Manifest has a warning", "file", file, "what", text) },
	})
}

// newShutdown makes what waits for the device's shutdown.
func (p *Parts) newShutdown() *shutdown.Watcher {
	o := &p.opts
	o.Gate.Set(false)
	pods := &shutdown.Pods{
		Desired:  o.PodState.Desired,
		PLEG:     o.Containers.PLEG,
		Workers:  o.Workers,
		Statuses: o.PodState.Statuses,
		Runtime:  o.Containers.Runtime,
		Stopper:  o.Workers.Stopper,
		Flush:    o.PodState.Reporter.Flush,
		Report:   func(pod *v1.Pod, obs *observed.Pod) { p.Status.Update(pod, obs, nil) },
	}
	opts := o.Shutdown
	opts.Pods, opts.End, opts.Began = pods.Alive, pods.End, p.shutdownBegan
	opts.Failed = func(err error) { o.Health.SetError(health.ShutdownUnnoticed, "", err) }
	return shutdown.New(opts)
}

// shutdownBegan keeps pods from starting while the device shuts down, and starts the desired pods when the shutdown is
// called off.
func (p *Parts) shutdownBegan(began bool) {
	p.opts.Gate.Set(began)
	p.opts.Self.Wake()
	if !began && p.opts.PodState.Ready.Started() {
		p.Intake.Start()
		p.opts.Workers.EnqueueAll()
	}
}

// started is called when the runtime's state is known and the desired pods were handed to their workers.
func (p *Parts) started(ctx context.Context) {
	p.opts.Containers.RuntimeStatus.Learn(ctx)
	p.opts.Containers.Garbage.CleanUp(ctx)
}

// probeChanged is called when the result of a probe has changed. The pod's worker acts on it, unless the pod ends.
func (p *Parts) probeChanged(uid types.UID, ending bool) {
	if ending {
		p.Status.Probed(uid)
		return
	}
	p.opts.Workers.Enqueue(uid)
}
