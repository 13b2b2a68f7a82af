package edged

import (
	"context"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/allocation"
	"github.com/edgecore-io/edgecore/edged/metaclient"
	"github.com/edgecore-io/edgecore/edged/observed"
	"github.com/edgecore-io/edgecore/edged/podadmit"
	"github.com/edgecore-io/edgecore/edged/runtime"
	"github.com/edgecore-io/edgecore/edged/runtimeclass"
	"github.com/edgecore-io/edgecore/edged/security"
	"github.com/edgecore-io/edgecore/edged/status"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// newAdmissions makes the part that admits pods.
func (e *Edged) newAdmissions(ctx context.Context) *podadmit.Controller {
	o := podadmit.Options{
		NodeName:    e.opts.NodeName,
		Allocatable: e.opts.Allocatable,
		Labels:      e.opts.Labels,
		Desired:     e.desired,
		Workers:     e.pool,
		PLEG:        e.pleg,
		Statuses:    e.statuses,
		Devices:     e.devices,
		Stopper:     e.stopper,
		Recorder:    e.recorder,
		Lock:        &e.admitMu,
		Closed:      e.gate.Closed,
		Allocated:   e.allocations.Allocated,
		Pressure:    e.evictions.Admit,
		Checks: []func(*v1.Pod) *observed.Reason{e.sysctls.Check, e.host.CheckAppArmor, e.evictions.Admit,
			e.checkGroups},
		Rejected: e.podStatus.Reject,
	}
	if e.opts.Node != nil {
		o.Node = func(ctx context.Context) (*v1.Node, error) { return e.meta.Node(ctx, e.opts.NodeName) }
	}
	return podadmit.New(ctx, o)
}

// checkGroups rejects a pod that wants groups which the runtime cannot give it.
func (e *Edged) checkGroups(pod *v1.Pod) *observed.Reason {
	f, known := e.runtime.Known()
	return security.CheckGroups(pod, f.SupplementalGroupsPolicy, known)
}

// runtimeClasses finds the handlers of RuntimeClasses.
func (e *Edged) runtimeClasses() runtimeclass.Resolver {
	return runtimeclass.Resolver{
		Class: func(ctx context.Context, name string) (*nodev1.RuntimeClass, error) {
			key := resource.Key{Namespace: resource.NullNamespace, Type: resource.TypeRuntimeClass, Name: name}
			return metaclient.Get[nodev1.RuntimeClass](ctx, e.meta, key)
		},
		Features: func(ctx context.Context) (runtime.Features, error) { return e.runtime.Features(ctx) },
	}
}

// newAllocations makes the part that resizes pods.
func (e *Edged) newAllocations() *allocation.Manager {
	return allocation.New(allocation.Options{
		Runtime:   e.client,
		Cgroups:   e.cgroups,
		Recorder:  e.recorder,
		Status:    e.lastStatus,
		Active:    e.resizable,
		Admit:     func(pod *v1.Pod) *observed.Reason { return e.admissions.AdmitResize(pod) },
		Admission: &e.admitMu,
		Enqueue:   e.pool.Enqueue,
		Freed:     e.capacityFreed.Notify,
	})
}

// lastStatus returns the newest status of a pod; the zero value if it has none.
func (e *Edged) lastStatus(uid types.UID) v1.PodStatus {
	st, _ := e.statuses.Get(uid)
	return st
}

// resizable returns a pod that may be resized; nil if it is not desired, is being stopped, or has ended.
func (e *Edged) resizable(uid types.UID) *v1.Pod {
	w, ok := e.desired.Get(uid)
	if !ok || w.Removed || w.Stopped != nil || status.Terminal(e.statuses.Phase(uid)) {
		return nil
	}
	return w.Pod
}

// devicesChanged is told when devices come, go, or change their health.
func (e *Edged) devicesChanged() {
	e.wakeNode()
	e.capacityFreed.Notify()
	for _, uid := range e.devices.Pods() {
		e.pool.Enqueue(uid)
	}
}
