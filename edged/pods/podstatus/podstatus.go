// Package podstatus makes the statuses of pods. It collects what is known about a pod: its spec, its containers in the
// runtime, the result of its newest sync, its probes and its previous status. Package status generates the status from
// that.
//
// Each status is made from the one before, so a Maker makes one at a time.
package podstatus

import (
	"cmp"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/containers/pleg"
	"github.com/edgecore-io/edgecore/edged/containers/runtime"
	"github.com/edgecore-io/edgecore/edged/pods/podstop"
	"github.com/edgecore-io/edgecore/edged/pods/prober"
	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/source"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
)

// defaultRuntime is the runtime's name in container IDs until the runtime has told its own.
const defaultRuntime = "containerd"

// Prober probes containers; see package prober.
type Prober interface {
	Sync(pod *v1.Pod, obs *observed.Pod, view prober.View) observed.Probes
}

// Allocations are the resources that pods were given; see package allocation.
type Allocations interface {
	Allocated(pod *v1.Pod) *v1.Pod
	Status(pod *v1.Pod, obs *observed.Pod) (running map[string]v1.ResourceRequirements, resize []v1.PodCondition)
}

// Devices are the node's devices; see package devices.
type Devices interface {
	Health(uid types.UID) map[string][]v1.ResourceStatus
}

// Addresses are the node's addresses; see package node.
type Addresses interface {
	IP() string
	IPs() []string
	IPv6First() bool
}

// Options are what a Maker needs.
type Options struct {
	Desired     *desired.Pods
	Statuses    *status.Manager
	Results     *Results
	PLEG        pleg.Interface
	Prober      Prober
	Allocations Allocations
	Stopper     podstop.Interface
	Devices     Devices
	Addresses   Addresses
	// RuntimeName returns the name of the runtime; "" until it is known.
	RuntimeName func() string
	// RecursiveReadOnly reports whether the runtime of a pod supports recursive read-only mounts. It may ask the
	// runtime.
	RecursiveReadOnly func(*v1.Pod) bool
}

// Maker makes statuses, and hands them to Options.Statuses. Its methods may be called from any goroutine.
type Maker struct {
	opts Options
	// mu is held while a status is made.
	mu sync.Mutex
}

// New returns a Maker.
func New(o Options) *Maker { return &Maker{opts: o} }

// Update makes the status of a pod. finished reports whether its containers have ended for good. A nil result
// keeps what the sync before it said.
func (m *Maker) Update(pod *v1.Pod, obs *observed.Pod, result *runtime.SyncResult) (finished bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if result != nil {
		m.opts.Results.setResult(pod.UID, *result)
	}
	return m.update(pod, obs)
}

// update is called under the lock.
func (m *Maker) update(pod *v1.Pod, obs *observed.Pod) (finished bool) {
	in := m.inputs(pod, obs)
	in.Reasons = m.opts.Results.get(pod.UID).Reasons
	in.Probes = m.Probe(pod, obs)
	return m.set(pod, in)
}

// Terminated makes the status of a pod whose containers have all ended, and which starts none.
func (m *Maker) Terminated(pod *v1.Pod, obs *observed.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	in := m.inputs(pod, obs)
	in.Reasons, in.Terminated = m.opts.Results.get(pod.UID).Reasons, true
	m.set(pod, in)
}

// Conclude completes the status of a pod when nothing of it is left to clean up.
func (m *Maker) Conclude(pod *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if before, ok := m.opts.Statuses.Get(pod.UID); ok {
		m.opts.Statuses.Set(pod, status.Conclude(pod, before, source.IsStatic(pod)))
	}
	m.opts.Results.drop(pod.UID)
}

// Reject makes the status of a pod that the node does not admit. Such a pod has no worker, so that nothing else
// makes its status. Reject does not wait for other statuses, which may wait for the runtime: admissions must not.
func (m *Maker) Reject(pod *v1.Pod, why observed.Reason) {
	in := m.inputs(pod, nil)
	in.Rejected = &why
	m.set(pod, in)
}

// Probed makes the status of a pod after a probe has changed its result while the pod ends: its worker waits for its
// containers, and makes no status until they have ended.
func (m *Maker) Probed(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w, ok := m.opts.Desired.Get(uid); ok {
		if obs := m.opts.PLEG.Get(uid); obs.ContainersAlive() {
			m.update(w.Pod, obs)
		}
	}
}

// Probe starts the probes of a pod's running containers, and returns what the probes have found so far.
func (m *Maker) Probe(pod *v1.Pod, obs *observed.Pod) observed.Probes {
	before, _ := m.opts.Statuses.Get(pod.UID)
	return m.opts.Prober.Sync(pod, obs, prober.View{Address: m.address(pod, obs), Before: before})
}

// address is where the node reaches a pod; "" if the pod has no address.
func (m *Maker) address(pod *v1.Pod, obs *observed.Pod) string {
	if pod.Spec.HostNetwork {
		return m.opts.Addresses.IP()
	}
	if sandbox := obs.Sandbox(); sandbox != nil && len(sandbox.IPs) > 0 {
		return sandbox.IPs[0]
	}
	return ""
}

func (m *Maker) set(pod *v1.Pod, in status.Inputs) (finished bool) {
	made, finished := status.Generate(in)
	m.opts.Statuses.Set(pod, made)
	return finished
}

// inputs collects what the status of a pod is made from, without what only some statuses need.
func (m *Maker) inputs(pod *v1.Pod, obs *observed.Pod) status.Inputs {
	before, restored := m.previous(pod)
	pod = m.opts.Allocations.Allocated(pod)
	running, resizing := m.opts.Allocations.Status(pod, obs)
	return status.Inputs{
		Pod:               pod,
		Observed:          obs,
		Runtime:           cmp.Or(m.opts.RuntimeName(), defaultRuntime),
		Previous:          before,
		Restored:          restored,
		Running:           running,
		Resize:            resizing,
		HostIPs:           m.opts.Addresses.IPs(),
		IPv6First:         m.opts.Addresses.IPv6First(),
		Stopped:           m.opts.Stopper.Why(pod.UID),
		Devices:           m.opts.Devices.Health(pod.UID),
		RecursiveReadOnly: wantsRecursiveReadOnly(pod) && m.opts.RecursiveReadOnly(pod),
		Static:            source.IsStatic(pod),
		Now:               time.Now(),
	}
}

// previous returns the newest status of a pod. restored reports whether an earlier run of the agent or the API
// server made it. A pod that has none here, because the store has lost it for example, continues with the API
// server's. A phase that is final there is final here.
func (m *Maker) previous(pod *v1.Pod) (before v1.PodStatus, restored bool) {
	before, known := m.opts.Statuses.Get(pod.UID)
	if !known {
		return pod.Status, true
	}
	if api := &pod.Status; status.Terminal(api.Phase) && !status.Terminal(before.Phase) {
		before.Phase, before.Reason, before.Message = api.Phase, api.Reason, api.Message
	}
	return before, m.opts.Statuses.Restored(pod.UID)
}

// wantsRecursiveReadOnly reports whether the status of a pod depends on the runtime's support for recursive read-only
// mounts.
func wantsRecursiveReadOnly(pod *v1.Pod) bool {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, mount := range c.VolumeMounts {
			if mode := mount.RecursiveReadOnly; mode != nil && *mode != v1.RecursiveReadOnlyDisabled {
				return true
			}
		}
	}
	return false
}
