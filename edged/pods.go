package edged

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/pods/allocation"
	"github.com/edgecore-io/edgecore/edged/pods/intake"
	"github.com/edgecore-io/edgecore/edged/pods/podadmit"
	"github.com/edgecore-io/edgecore/edged/pods/podstatus"
	"github.com/edgecore-io/edgecore/edged/pods/podsync"
	"github.com/edgecore-io/edgecore/edged/pods/prober"
	"github.com/edgecore-io/edgecore/edged/pods/shutdown"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/source"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/version"
)

// podParts is the way of a pod: taken in, admitted, synced by its worker, and its status made.
type podParts struct {
	prober      *prober.Prober
	allocations *allocation.Manager
	podStatus   *podstatus.Maker
	admissions  *podadmit.Controller
	intake      *intake.Intake
}

func (e *Edged) buildPods(ctx context.Context) {
	e.prober = prober.New(prober.Options{
		Exec:      e.containers.Client,
		Recorder:  e.podstate.Recorder,
		Changed:   e.probeChanged,
		UserAgent: prober.UserAgent(version.Kubernetes()),
	})
	e.allocations = allocation.New(allocation.Options{
		Runtime:  e.containers.Client,
		Cgroups:  e.containers.Cgroups,
		Recorder: e.podstate.Recorder,
		Pods:     allocation.DesiredPods{Desired: e.podstate.Desired, Statuses: e.podstate.Statuses},
		Enqueue:  e.workers.Enqueue,
		Freed:    e.podstate.CapacityFreed.Notify,
	})
	e.podStatus = podstatus.New(podstatus.Options{
		Desired:           e.podstate.Desired,
		Statuses:          e.podstate.Statuses,
		Results:           &e.state.pods.Results,
		PLEG:              e.containers.PLEG,
		Prober:            e.prober,
		Allocations:       e.allocations,
		Stopper:           e.workers.Stopper,
		Devices:           e.storage.Devices,
		Addresses:         e.self.Addresses,
		RuntimeName:       e.containers.RuntimeVersion.Name,
		RecursiveReadOnly: func(pod *v1.Pod) bool { return e.containers.Runtime.RecursiveReadOnly(ctx, pod) },
	})
	e.workers.SetSyncer(e.newSyncer())
	e.admissions = e.newAdmissions(ctx)
	e.allocations.SetAdmission(e.admissions)
	e.intake = intake.New(intake.Options{
		NodeName:    e.opts.NodeName,
		Began:       e.podstate.Began,
		Bus:         e.opts.Bus,
		Store:       e.podstate.Meta,
		Ready:       e.podstate.Ready,
		Desired:     e.podstate.Desired,
		Admission:   e.admissions,
		Workers:     e.workers,
		PLEG:        e.containers.PLEG,
		Statuses:    e.podstate.Statuses,
		Garbage:     e.containers.Garbage,
		Allocations: e.allocations,
		Waiters:     &e.state.pods.Terminations,
		Mirrors:     e.podstate.Mirrors,
		Started:     e.podsStarted,
		Freed:       e.podstate.CapacityFreed.Notify,
		Linked:      e.linked,
		Synced:      func() { e.podstate.Damaged.Store(false) },
	})
	e.workers.SetIntake(e.intake)
}

// newSyncer makes what the pod workers do.
func (e *Edged) newSyncer() *podsync.Syncer {
	return podsync.New(podsync.Options{
		Desired:       e.podstate.Desired,
		Statuses:      e.podstate.Statuses,
		PodStatus:     e.podStatus,
		Gate:          &e.state.pods.Gate,
		Waiters:       &e.state.pods.Terminations,
		Deadlines:     &e.state.pods.Deadlines,
		Recorder:      e.podstate.Recorder,
		PLEG:          e.containers.PLEG,
		Runtime:       e.containers.Runtime,
		Stopper:       e.workers.Stopper,
		Allocations:   e.allocations,
		Volumes:       e.storage.Volumes,
		Inputs:        e.containers.Inputs,
		Prober:        e.prober,
		Store:         e.podstate.Meta,
		Reports:       e.podstate.Reporter,
		PodDir:        e.containers.PodDir,
		NetworkFor:    e.containers.RuntimeStatus.NetworkFor,
		Prepared:      e.node.Limits.Added,
		RemoveCgroup:  e.containers.Cgroups.RemovePod,
		ReleaseUserNS: e.containers.UserNS.Release,
		FreeDevices:   e.storage.Devices.Free,
		ImagesUsed:    e.containers.Garbage.ImagesUsed,
		Freed:         e.podstate.CapacityFreed.Notify,
	})
}

func (e *Edged) newAdmissions(ctx context.Context) *podadmit.Controller {
	o := podadmit.Options{
		NodeName:    e.opts.NodeName,
		Allocatable: e.opts.Allocatable,
		Labels:      e.opts.Labels,
		Desired:     e.podstate.Desired,
		Workers:     e.workers,
		PLEG:        e.containers.PLEG,
		Statuses:    e.podstate.Statuses,
		Devices:     e.storage.Devices,
		Stopper:     e.workers.Stopper,
		Recorder:    e.podstate.Recorder,
		Allocations: e.allocations,
		Freed:       e.podstate.CapacityFreed,
		Closed:      e.state.pods.Gate.Closed,
		Pressure:    e.node.Pressure.Admit,
		Checks: []func(*v1.Pod) *observed.Reason{
			e.containers.Sysctls.Check,
			e.containers.Host.CheckAppArmor,
			e.node.Pressure.Admit,
			e.containers.CheckGroups,
		},
		Rejected: e.podStatus.Reject,
	}
	if e.opts.Node != nil {
		o.Node = func(ctx context.Context) (*v1.Node, error) { return e.podstate.Meta.Node(ctx, e.opts.NodeName) }
	}
	return podadmit.New(ctx, o)
}

// newStatic makes the source of static pods.
func (e *Edged) newStatic() *source.Static {
	return source.NewStatic(source.StaticOptions{
		Dir:      e.opts.StaticPodDir,
		Watcher:  e.opts.Watcher,
		NodeName: e.opts.NodeName,
		Rescan:   e.opts.FileCheck,
		Known:    func(pods []*v1.Pod) { e.podstate.Adopted.StaticPods(pods, source.AnnotationHash) },
		Pods:     e.intake.SetStatic,
		Fault:    func(file string, err error) { e.opts.Health.SetError(health.StaticPodBad, file, err) },
		Warning:  func(file, text string) { klog.InfoS("Manifest has a warning", "file", file, "what", text) },
	})
}

// newShutdown makes what waits for the device's shutdown.
func (e *Edged) newShutdown() *shutdown.Watcher {
	e.state.pods.Gate.Set(false)
	pods := &shutdown.Pods{
		Desired:  e.podstate.Desired,
		PLEG:     e.containers.PLEG,
		Workers:  e.workers,
		Statuses: e.podstate.Statuses,
		Runtime:  e.containers.Runtime,
		Stopper:  e.workers.Stopper,
		Flush:    e.podstate.Reporter.Flush,
		Report:   func(pod *v1.Pod, obs *observed.Pod) { e.podStatus.Update(pod, obs, nil) },
	}
	opts := e.opts.Shutdown
	opts.Pods, opts.End, opts.Began = pods.Alive, pods.End, e.shutdownBegan
	opts.Failed = func(err error) { e.opts.Health.SetError(health.ShutdownUnnoticed, "", err) }
	return shutdown.New(opts)
}

// shutdownBegan keeps pods from starting while the device shuts down, and starts the desired pods when the shutdown is
// called off.
func (e *Edged) shutdownBegan(began bool) {
	e.state.pods.Gate.Set(began)
	e.self.Wake()
	if !began && e.podstate.Ready.Started() {
		e.intake.Start()
		e.workers.EnqueueAll()
	}
}

// podsStarted is called when the runtime's state is known and the desired pods were handed to their workers.
func (e *Edged) podsStarted(ctx context.Context) {
	e.containers.RuntimeStatus.Learn(ctx)
	e.containers.Garbage.CleanUp(ctx)
}

// linked retries what failed for want of the link.
func (e *Edged) linked() {
	e.self.Wake()
	e.storage.CSI.Linked()
	e.api.Linked()
}

// probeChanged is called when the result of a probe has changed. The pod's worker acts on it, unless the pod ends.
func (e *Edged) probeChanged(uid types.UID, ending bool) {
	if ending {
		e.podStatus.Probed(uid)
		return
	}
	e.workers.Enqueue(uid)
}
