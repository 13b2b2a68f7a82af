// Package allocation keeps the resources that each pod was allocated, and resizes pods while they run.
//
// A pod that asks for other cpu or memory keeps what it has until the node admits the change. What the node has
// admitted is allocated to the pod, and from then on its containers and cgroups are brought to that. Package resize
// decides what to admit and in which order. After a restart of the agent, the pods' statuses tell what was allocated
// and with which amounts containers run.
package allocation

import (
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cgroups"
	"github.com/edgecore-io/edgecore/edged/pods/resize"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// Events of a resize, in the kubelet's words.
const (
	eventResizeDeferred   = "ResizeDeferred"
	eventResizeInfeasible = "ResizeInfeasible"
	eventResizeStarted    = "ResizeStarted"
	eventResizeCompleted  = "ResizeCompleted"
	eventResizeError      = "ResizeError"
)

// Pods are the desired pods and their statuses; see DesiredPods.
type Pods interface {
	// Status returns the newest status of a pod; the zero value if it has none.
	Status(uid types.UID) v1.PodStatus
	// Active returns a pod that may be resized; nil if it is not desired, is being stopped, or has ended.
	Active(uid types.UID) *v1.Pod
}

// Admission decides whether the node has what a pod asks for; see package podadmit. It is locked while AdmitResize is
// called and what that admits is allocated: one admission follows the other.
type Admission interface {
	sync.Locker
	// AdmitResize says why the node does not give a pod what it asks for; nil admits it.
	AdmitResize(pod *v1.Pod) *observed.Reason
}

// Options are what a Manager needs.
type Options struct {
	Runtime  runtimeapi.RuntimeServiceClient
	Cgroups  *cgroups.Manager
	Recorder *events.Recorder
	Pods     Pods
	// Enqueue requests a sync of a pod whose allocation has changed.
	Enqueue func(types.UID)
	// Freed is called when a pod has become smaller.
	Freed func()
}

// Manager keeps the allocations. Its methods may be called from any goroutine.
type Manager struct {
	opts      Options
	admission Admission

	mu   sync.Mutex
	pods map[types.UID]*allocation
}

// New returns a Manager.
func New(o Options) *Manager { return &Manager{opts: o, pods: map[types.UID]*allocation{}} }

// SetAdmission sets who admits resizes. It is called once, before the first pod is resized.
func (m *Manager) SetAdmission(a Admission) { m.admission = a }

// allocation is what is known of one pod.
type allocation struct {
	allocated resize.Amounts
	// running are the amounts with which containers run, by ID.
	running map[string]container
	// podLevel are the pod-level amounts of the pod's cgroup; nil for a pod without.
	podLevel *v1.ResourceRequirements
	// memoryLimit is the memory limit of the pod's cgroup in bytes. 0 means no limit; nil means that it is not known.
	memoryLimit *int64
	// pending is the condition of a pod that does not get what it asks for; refused are the amounts that were refused.
	pending *v1.PodCondition
	refused resize.Amounts
	// inProgress is the condition while containers do not run with what was allocated.
	inProgress *v1.PodCondition
	// admitted counts the resizes that were admitted, stored those whose amounts are in the stored status.
	admitted, stored int
}

// container is a running container.
type container struct {
	name string
	// own are the container's amounts. cgroup are those of its cgroup, which has the pod's limits where own has none.
	own, cgroup v1.ResourceRequirements
}

// get returns what is known of a pod. It is called under the lock.
func (m *Manager) get(pod *v1.Pod) *allocation {
	if have := m.pods[pod.UID]; have != nil {
		return have
	}
	before := m.opts.Pods.Status(pod.UID)
	have := &allocation{
		allocated:  resize.Told(pod, &before),
		running:    map[string]container{},
		pending:    resize.Find(before.Conditions, v1.PodResizePending),
		inProgress: resize.Find(before.Conditions, v1.PodResizeInProgress),
	}
	if r, ok := have.allocated[resize.Whole]; ok {
		have.podLevel = &r
		if reported := before.Resources; reported != nil {
			have.podLevel = new(resize.Named(r, reported.Requests, reported.Limits))
		}
	}
	m.pods[pod.UID] = have
	return have
}

// Forget drops what is known of a pod.
func (m *Manager) Forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pods, uid)
}

// Unstored reports whether a resize of a pod was admitted that is not in the pod's stored status yet. Nothing may run
// with its amounts before: an agent that is killed meanwhile would take the earlier ones for allocated, and give the
// room to another pod. Make and store the status, and then call Stored with admitted.
func (m *Manager) Unstored(uid types.UID) (admitted int, unstored bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	have := m.pods[uid]
	if have == nil {
		return 0, false
	}
	return have.admitted, have.admitted != have.stored
}

// Stored notes that the status with the resize that Unstored returned is stored.
func (m *Manager) Stored(uid types.UID, admitted int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if have := m.pods[uid]; have != nil {
		have.stored = max(have.stored, admitted)
	}
}

// Allocated returns a pod with the cpu and memory that were allocated to it, whatever it asks for now. It returns pod
// itself if these are the same.
func (m *Manager) Allocated(pod *v1.Pod) *v1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.get(pod).allocated.On(pod)
}

// Allocate decides whether a pod gets what it asks for, and returns it as Allocated does. What was refused is decided
// again when the pod asks for something else, or by Retry.
func (m *Manager) Allocate(pod *v1.Pod) *v1.Pod {
	m.mu.Lock()
	have := m.get(pod)
	if have.allocated.On(pod) == pod {
		have.pending, have.refused = nil, nil
		m.mu.Unlock()
		return pod
	}
	refused := have.pending != nil && have.refused != nil && have.refused.On(pod) == pod
	m.mu.Unlock()
	if !refused {
		m.Retry(pod)
	}
	return m.Allocated(pod)
}

// Retry decides again on the resizes that were deferred for want of capacity, in the order of package resize. If pod is
// not nil, its resize, which is new, is decided among them. Other pods whose decision has changed are enqueued.
func (m *Manager) Retry(pod *v1.Pod) {
	m.admission.Lock()
	defer m.admission.Unlock()
	for _, w := range m.waiting(pod) {
		changed := m.admit(w.Pod)
		if changed && (pod == nil || w.Pod.UID != pod.UID) {
			m.opts.Enqueue(w.Pod.UID)
		}
	}
}

// waiting returns the pods whose resize waits for capacity, and one whose resize is new, in the order in which they are
// decided.
func (m *Manager) waiting(pod *v1.Pod) []resize.Waiting {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []resize.Waiting
	add := func(p *v1.Pod, have *allocation) {
		w := resize.Waiting{Pod: p, Allocated: have.allocated.On(p)}
		if have.pending != nil {
			w.Since = have.pending.LastTransitionTime.Time
		}
		list = append(list, w)
	}
	if pod != nil {
		add(pod, m.get(pod))
	}
	for uid, have := range m.pods {
		if have.pending == nil || have.pending.Reason != v1.PodReasonDeferred || pod != nil && pod.UID == uid {
			continue
		}
		if active := m.opts.Pods.Active(uid); active != nil {
			add(active, have)
		}
	}
	resize.Order(list)
	return list
}

// admit allocates to a pod what it asks for if the node admits it, and reports whether the pod's conditions changed.
func (m *Manager) admit(pod *v1.Pod) (changed bool) {
	why := resize.KeepsSwap(pod, m.Allocated(pod), m.opts.Cgroups.MaySwap)
	if why == nil {
		why = m.admission.AdmitResize(pod)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	have, now := m.get(pod), time.Now()
	if why == nil {
		have.allocated, have.pending, have.refused = resize.Of(pod), nil, nil
		have.admitted++
		have.inProgress = resize.Condition(v1.PodResizeInProgress, nil, "", "", pod.Generation, now)
		m.opts.Recorder.Eventf(pod, v1.EventTypeNormal, eventResizeStarted, "%s",
			resize.Message("Pod resize started", pod, pod.Generation, ""))
		return true
	}
	reason, event := v1.PodReasonDeferred, eventResizeDeferred
	if why.Reason == v1.PodReasonInfeasible {
		reason, event = v1.PodReasonInfeasible, eventResizeInfeasible
	}
	before := have.pending
	have.pending = resize.Condition(v1.PodResizePending, before, reason, why.Message, pod.Generation, now)
	have.refused = resize.Of(pod)
	if before == nil || before.Reason != reason || before.ObservedGeneration != pod.Generation {
		m.opts.Recorder.Eventf(pod, v1.EventTypeWarning, event, "%s",
			resize.Message("Pod resize "+why.Reason, pod, pod.Generation, why.Message))
	}
	return !equality.Semantic.DeepEqual(before, have.pending)
}

// Status returns what the status of a pod says of its resize: the amounts with which its containers run by name, those
// of the pod as a whole under resize.Whole if it has pod-level resources, and the conditions.
func (m *Manager) Status(pod *v1.Pod, obs *observed.Pod) (map[string]v1.ResourceRequirements, []v1.PodCondition) {
	m.changes(pod, obs) // adds containers that are new
	m.mu.Lock()
	defer m.mu.Unlock()
	have := m.get(pod)
	running := map[string]v1.ResourceRequirements{}
	for _, c := range have.running {
		running[c.name] = c.own
	}
	if have.podLevel != nil {
		running[resize.Whole] = *have.podLevel
	}
	var conditions []v1.PodCondition
	for _, c := range []*v1.PodCondition{have.pending, have.inProgress} {
		if c != nil {
			conditions = append(conditions, *c)
		}
	}
	return running, conditions
}

// reportedResources returns the amounts with which a container runs according to a status; nil if it does not say.
func reportedResources(before *v1.PodStatus, name, id string) *v1.ResourceRequirements {
	for _, list := range [][]v1.ContainerStatus{before.InitContainerStatuses, before.ContainerStatuses} {
		for _, s := range list {
			if s.Name == name && strings.HasSuffix(s.ContainerID, "://"+id) && s.Resources != nil {
				return s.Resources
			}
		}
	}
	return nil
}
