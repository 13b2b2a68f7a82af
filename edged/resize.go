package edged

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/cgroups"
	"github.com/edgecore-io/edgecore/edged/observed"
	"github.com/edgecore-io/edgecore/edged/resize"
	"github.com/edgecore-io/edgecore/edged/stats"
	"github.com/edgecore-io/edgecore/edged/status"
)

// This file is how a pod's cpu and memory change while it runs. What is decided is in package resize.

// Events of a resize, in the kubelet's words.
const (
	eventResizeDeferred   = "ResizeDeferred"
	eventResizeInfeasible = "ResizeInfeasible"
	eventResizeStarted    = "ResizeStarted"
	eventResizeCompleted  = "ResizeCompleted"
	eventResizeError      = "ResizeError"
)

// sizes remembers what each pod was allocated, and with what its containers run. It is made anew from the statuses.
type sizes struct {
	mu   sync.Mutex
	pods map[types.UID]*size
}

type size struct {
	allocated resize.Amounts
	// running are the amounts with which containers run, by id.
	running map[string]ran
	// whole are the pod-level amounts of the pod's cgroup; nil for a pod without.
	whole *v1.ResourceRequirements
	// limit is the limit of memory of the pod's cgroup, in bytes, 0 where it has none; limited says that it is known.
	limit   int64
	limited bool
	// pending is the condition of a pod that does not get what it asks for, refused the amounts for which that was
	// decided.
	pending *v1.PodCondition
	refused resize.Amounts
	// going is the condition while containers do not yet run with what was allocated.
	going *v1.PodCondition
}

// ran is a container that runs: its name, its own amounts, and those of its cgroup, which has the pod's limits where
// the container has none.
type ran struct {
	name       string
	own, group v1.ResourceRequirements
}

// of returns what is known of a pod. It is called under the lock.
func (s *sizes) of(e *Edged, pod *v1.Pod) *size {
	have := s.pods[pod.UID]
	if have == nil {
		before, _ := e.statuses.Get(pod.UID)
		have = &size{
			allocated: resize.Told(pod, &before),
			running:   map[string]ran{},
			pending:   resize.Find(before.Conditions, v1.PodResizePending),
			going:     resize.Find(before.Conditions, v1.PodResizeInProgress),
		}
		if r, ok := have.allocated[resize.Whole]; ok {
			have.whole = &r
			if told := before.Resources; told != nil {
				have.whole = new(resize.Named(r, told.Requests, told.Limits))
			}
		}
		if s.pods == nil {
			s.pods = map[types.UID]*size{}
		}
		s.pods[pod.UID] = have
	}
	return have
}

func (s *sizes) drop(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods, uid)
}

// allocated is a pod with the cpu and memory that it was allocated, whatever it asks for now.
func (e *Edged) allocated(pod *v1.Pod) *v1.Pod {
	e.sizes.mu.Lock()
	defer e.sizes.mu.Unlock()
	return e.sizes.of(e, pod).allocated.On(pod)
}

// allocate decides whether a pod gets what it asks for now, and returns the pod with what it has then. What was refused
// is decided again when the pod asks for something else, or when there is more room.
func (e *Edged) allocate(pod *v1.Pod) *v1.Pod {
	e.sizes.mu.Lock()
	have := e.sizes.of(e, pod)
	if have.allocated.On(pod) == pod {
		have.pending, have.refused = nil, nil
		e.sizes.mu.Unlock()
		return pod
	}
	refused := have.pending != nil && have.refused != nil && have.refused.On(pod) == pod
	e.sizes.mu.Unlock()
	if !refused {
		e.retryResizes(pod)
	}
	return e.allocated(pod)
}

// retryResizes decides again on all resizes that wait for room, and on one pod's that is new; nil is none. Pods are
// judged one after another, as at their admission.
func (e *Edged) retryResizes(pod *v1.Pod) {
	e.admitMu.Lock()
	defer e.admitMu.Unlock()
	for _, w := range e.waitingResizes(pod) {
		changed := e.judgeResize(w.Pod)
		if changed && (pod == nil || w.Pod.UID != pod.UID) {
			e.pool.Poke(w.Pod.UID)
		}
	}
}

// waitingResizes are the pods that wait for room, and one whose resize is new, in the order in which they are judged.
func (e *Edged) waitingResizes(pod *v1.Pod) []resize.Waiting {
	e.sizes.mu.Lock()
	defer e.sizes.mu.Unlock()
	var list []resize.Waiting
	add := func(p *v1.Pod, have *size) {
		w := resize.Waiting{Pod: p, Allocated: have.allocated.On(p)}
		if have.pending != nil {
			w.Since = have.pending.LastTransitionTime.Time
		}
		list = append(list, w)
	}
	if pod != nil {
		add(pod, e.sizes.of(e, pod))
	}
	for uid, have := range e.sizes.pods {
		if have.pending == nil || have.pending.Reason != v1.PodReasonDeferred || pod != nil && pod.UID == uid {
			continue
		}
		if w, ok := e.desired.Get(uid); ok && !w.Removed && w.Stopped == nil && !status.Terminal(e.statuses.Phase(uid)) {
			add(w.Pod, have)
		}
	}
	resize.Order(list)
	return list
}

// judgeResize gives a pod the amounts that it asks for if they fit, and reports whether its conditions changed.
func (e *Edged) judgeResize(pod *v1.Pod) (changed bool) {
	why := e.evictions.Admit(pod) // a node under pressure gives nothing, until that is over
	if why == nil {
		why = resize.Judge(pod, e.opts.Allocatable, e.beside(pod.UID))
	}
	e.sizes.mu.Lock()
	defer e.sizes.mu.Unlock()
	have, now := e.sizes.of(e, pod), time.Now()
	if why == nil {
		have.allocated, have.pending, have.refused = resize.Of(pod), nil, nil
		have.going = resize.Condition(v1.PodResizeInProgress, nil, "", "", pod.Generation, now)
		e.recorder.Eventf(pod, v1.EventTypeNormal, eventResizeStarted, "%s",
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
		e.recorder.Eventf(pod, v1.EventTypeWarning, event, "%s",
			resize.Message("Pod resize "+why.Reason, pod, pod.Generation, why.Message))
	}
	return !equality.Semantic.DeepEqual(before, have.pending)
}

// change is one running container that is to have other amounts. from and to are those of its cgroup: its own, and the
// pod's where it has none.
type change struct {
	container *v1.Container
	id        string
	from, to  v1.ResourceRequirements
	restart   bool
}

// changes finds the running containers that have other amounts than those allocated to them, and reports whether the
// pod as a whole has. A container that is seen for the first time has those that it had before, or was made with what
// was allocated.
func (e *Edged) changes(pod *v1.Pod, obs *observed.Pod) (list []change, whole bool) {
	before, _ := e.statuses.Get(pod.UID)
	e.sizes.mu.Lock()
	defer e.sizes.mu.Unlock()
	have := e.sizes.of(e, pod)
	live := map[string]bool{}
	for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			o := obs.Container(c.Name)
			if !o.Running() {
				continue
			}
			live[o.ID] = true
			to := resize.Effective(pod.Spec.Resources, c.Resources)
			r, known := have.running[o.ID]
			if !known {
				r = ran{c.Name, c.Resources, to}
				if told := toldOf(&before, c.Name, o.ID); told != nil {
					r.own, r.group = *told, resize.Effective(have.whole, *told)
				}
				have.running[o.ID] = r
			}
			if !resize.Same(r.group, to) {
				list = append(list, change{c, o.ID, r.group, to, resize.Restarts(c, r.group, to)})
			}
		}
	}
	for id := range have.running {
		if !live[id] {
			delete(have.running, id)
		}
	}
	return list, have.whole != nil && pod.Spec.Resources != nil && !resize.Same(*have.whole, *pod.Spec.Resources)
}

// toldOf are the amounts with which a container runs, as its status of before says.
func toldOf(before *v1.PodStatus, name, id string) *v1.ResourceRequirements {
	for _, list := range [][]v1.ContainerStatus{before.InitContainerStatuses, before.ContainerStatuses} {
		for _, s := range list {
			if s.Name == name && strings.HasSuffix(s.ContainerID, "://"+id) && s.Resources != nil {
				return s.Resources
			}
		}
	}
	return nil
}

// ensureCgroup makes the cgroup of a pod. Where containers run already it has room for what they have, too: limits are
// lowered by resized alone.
func (e *Edged) ensureCgroup(pod *v1.Pod) error {
	with := e.withRoom(pod)
	if err := e.cgroups.EnsurePod(with); err != nil {
		return err
	}
	e.sizes.mu.Lock()
	defer e.sizes.mu.Unlock()
	if have := e.sizes.of(e, pod); !have.limited {
		have.limit, have.limited = podMemoryLimit(with), true
	}
	return nil
}

// withRoom is a pod with the larger of what it was allocated and what its containers have.
func (e *Edged) withRoom(pod *v1.Pod) *v1.Pod {
	e.sizes.mu.Lock()
	defer e.sizes.mu.Unlock()
	have, had := e.sizes.of(e, pod), resize.Of(pod)
	for _, r := range have.running {
		if _, ok := had[r.name]; ok {
			had[r.name] = r.own
		}
	}
	if have.whole != nil && pod.Spec.Resources != nil {
		had[resize.Whole] = *have.whole
	}
	return resize.Larger(resize.Of(pod), had).On(pod)
}

// podMemoryLimit is the limit of memory of a pod's cgroup; 0 is none.
func podMemoryLimit(pod *v1.Pod) int64 {
	return cgroups.PodResources(pod, cgroups.ResourceOptions{}, 0).Memory
}

// setPodCgroup gives a pod's cgroup the limits that a pod has, and notes the one of memory.
func (e *Edged) setPodCgroup(ctx context.Context, pod *v1.Pod, obs *observed.Pod) error {
	if err := e.resizePod(ctx, pod, obs); err != nil {
		return err
	}
	e.sizes.mu.Lock()
	defer e.sizes.mu.Unlock()
	have := e.sizes.of(e, pod)
	have.limit, have.limited = podMemoryLimit(pod), true
	return nil
}

// resize gives running containers what was allocated to them: first room in the pod's cgroup for both what they have
// and what they get, then each container its part. Containers that have to be started again for it are returned, as
// probes that have failed; the pod's cgroup is brought down by resized. Nothing is changed while a limit of memory would
// go below what is in use.
func (e *Edged) resize(
	ctx context.Context, pod *v1.Pod, obs *observed.Pod, probes observed.Probes,
) (observed.Probes, error) {
	changes, whole := e.changes(pod, obs)
	if len(changes) == 0 && !whole {
		return probes, nil
	}
	e.sizes.mu.Lock()
	if have := e.sizes.of(e, pod); have.going == nil { // the agent began in its middle
		have.going = resize.Condition(v1.PodResizeInProgress, nil, "", "", pod.Generation, time.Now())
	}
	e.sizes.mu.Unlock()
	inPlace := slices.DeleteFunc(slices.Clone(changes), func(c change) bool { return c.restart })
	for _, c := range changes {
		if c.restart {
			why := fmt.Sprintf("Container %s resize requires restart, will be restarted", c.container.Name)
			probes = probes.Stopped(c.id, why)
		}
	}
	lower := e.decreases(ctx, inPlace)
	if len(inPlace) == len(changes) { // else the pod's limit follows the restart
		lower = append(lower, e.podDecrease(pod, obs)...)
	}
	if err := resize.CheckMemory(lower); err != nil {
		return probes, err
	}
	if err := e.setPodCgroup(ctx, e.withRoom(pod), obs); err != nil {
		return probes, err
	}
	var errs []error
	for _, c := range inPlace {
		_, err := e.client.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: c.id, Linux: e.cgroups.ContainerResources(pod, c.container),
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("resize container %s: %w", c.container.Name, err))
			continue
		}
		e.sizes.mu.Lock()
		e.sizes.of(e, pod).running[c.id] = ran{c.container.Name, c.container.Resources, c.to}
		e.sizes.mu.Unlock()
	}
	return probes, errors.Join(errs...)
}

// decreases are the containers whose limit of memory is to be lowered, with the memory that they use.
func (e *Edged) decreases(ctx context.Context, changes []change) []resize.Decrease {
	var list []resize.Decrease
	for _, c := range changes {
		limit := resize.MemoryLimit(c.to)
		if !resize.Decreases(resize.MemoryLimit(c.from), limit) {
			continue
		}
		d := resize.Decrease{Name: c.container.Name, Limit: limit}
		got, err := e.client.ContainerStats(ctx, &runtimeapi.ContainerStatsRequest{ContainerId: c.id})
		if err != nil {
			klog.V(2).InfoS("Memory in use by a container is not known", "container", c.container.Name, "err", err)
		}
		if used := got.GetStats().GetMemory(); used.GetUsageBytes() != nil {
			d.Used = new(used.GetUsageBytes().GetValue())
		} else if used.GetWorkingSetBytes() != nil {
			d.Used = new(used.GetWorkingSetBytes().GetValue())
		}
		list = append(list, d)
	}
	return list
}

// podDecrease is the limit of memory of a running pod's cgroup where it is to be lowered.
func (e *Edged) podDecrease(pod *v1.Pod, obs *observed.Pod) []resize.Decrease {
	e.sizes.mu.Lock()
	have := e.sizes.of(e, pod)
	before, known := have.limit, have.limited
	e.sizes.mu.Unlock()
	limit := podMemoryLimit(pod)
	dirs, own := e.cgroups.PodDirs(pod)
	if !known || !own || !resize.Decreases(before, limit) || !obs.ContainersAlive() {
		return nil
	}
	return []resize.Decrease{{Name: resize.Whole, Limit: limit, Used: stats.MemoryUsage(&dirs)}}
}

// resized ends a resize, when all containers run with what was allocated, and notes what stands in its way otherwise.
func (e *Edged) resized(ctx context.Context, pod *v1.Pod, obs *observed.Pod, failed error) error {
	left, whole := e.changes(pod, obs)
	e.sizes.mu.Lock()
	going := e.sizes.of(e, pod).going
	e.sizes.mu.Unlock()
	if going == nil && !whole && failed == nil {
		return nil
	}
	var err error
	if failed == nil && len(left) == 0 {
		if err = resize.CheckMemory(e.podDecrease(pod, obs)); err == nil {
			err = e.setPodCgroup(ctx, pod, obs)
		}
		failed = err
	}
	e.sizes.mu.Lock()
	defer e.sizes.mu.Unlock()
	have, now := e.sizes.of(e, pod), time.Now()
	switch {
	case failed != nil:
		generation := pod.Generation
		if going != nil {
			generation = going.ObservedGeneration
		}
		have.going = resize.Condition(v1.PodResizeInProgress, going, v1.PodReasonError, failed.Error(), generation, now)
		if going == nil || going.Reason != have.going.Reason || !resize.SameFailure(going.Message, failed.Error()) {
			e.recorder.Eventf(pod, v1.EventTypeWarning, eventResizeError, "%s",
				resize.Message("Pod resize error", pod, generation, failed.Error()))
		}
	case len(left) == 0:
		if have.whole != nil && pod.Spec.Resources != nil {
			have.whole = new(*pod.Spec.Resources)
		}
		if going != nil {
			have.going = nil
			e.recorder.Eventf(pod, v1.EventTypeNormal, eventResizeCompleted, "%s",
				resize.Message("Pod resize completed", pod, going.ObservedGeneration, ""))
			e.capacityFreed.Notify() // it may have become smaller
		}
	}
	return err
}

// sizeOf is what a status says of a pod's resize: with what its containers run, and under resize.Whole the pod as a
// whole where it has pod-level resources; and the conditions.
func (e *Edged) sizeOf(pod *v1.Pod, obs *observed.Pod) (map[string]v1.ResourceRequirements, []v1.PodCondition) {
	e.changes(pod, obs) // containers that are new are known then
	e.sizes.mu.Lock()
	defer e.sizes.mu.Unlock()
	have := e.sizes.of(e, pod)
	running := map[string]v1.ResourceRequirements{}
	for _, r := range have.running {
		running[r.name] = r.own
	}
	if have.whole != nil {
		running[resize.Whole] = *have.whole
	}
	var conditions []v1.PodCondition
	for _, c := range []*v1.PodCondition{have.pending, have.going} {
		if c != nil {
			conditions = append(conditions, *c)
		}
	}
	return running, conditions
}
