package edged

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/observed"
	"github.com/edgecore-io/edgecore/edged/resize"
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
	running map[string]v1.ResourceRequirements
	// pending says why the pod does not get what it asks for; failed why it does not run with what it was allocated.
	pending *observed.Reason
	failed  string
	// going: containers do not yet run with what was allocated.
	going bool
}

// of returns what is known of a pod. It is called under the lock.
func (s *sizes) of(e *Edged, pod *v1.Pod) *size {
	have := s.pods[pod.UID]
	if have == nil {
		before, _ := e.statuses.Get(pod.UID)
		have = &size{allocated: resize.Told(pod, &before), running: map[string]v1.ResourceRequirements{}}
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

// allocate decides whether a pod gets what it asks for now, and returns the pod with what it has then. Pods are judged
// one after another, as at their admission.
func (e *Edged) allocate(pod *v1.Pod) *v1.Pod {
	if have := e.allocated(pod); have == pod {
		e.sizes.mu.Lock()
		defer e.sizes.mu.Unlock()
		e.sizes.of(e, pod).pending = nil
		return pod
	}
	e.admitMu.Lock()
	defer e.admitMu.Unlock()
	why := resize.Judge(pod, e.opts.Allocatable, e.beside(pod.UID))
	e.sizes.mu.Lock()
	defer e.sizes.mu.Unlock()
	have := e.sizes.of(e, pod)
	if why == nil {
		have.allocated, have.pending, have.going = resize.Of(pod), nil, true
		e.recorder.Eventf(pod, v1.EventTypeNormal, eventResizeStarted, "Pod resize started")
		return pod
	}
	if have.pending == nil || *have.pending != *why {
		reason := eventResizeDeferred
		if why.Reason == v1.PodReasonInfeasible {
			reason = eventResizeInfeasible
		}
		e.recorder.Eventf(pod, v1.EventTypeWarning, reason, "Pod resize %s: %s", why.Reason, why.Message)
	}
	have.pending = why
	return have.allocated.On(pod)
}

// deferredResizes tries the resizes again that did not fit.
func (e *Edged) deferredResizes() {
	e.sizes.mu.Lock()
	var waiting []types.UID
	for uid, s := range e.sizes.pods {
		if s.pending != nil && s.pending.Reason == v1.PodReasonDeferred {
			waiting = append(waiting, uid)
		}
	}
	e.sizes.mu.Unlock()
	for _, uid := range waiting {
		e.pool.Poke(uid)
	}
}

// change is one running container that is to have other amounts.
type change struct {
	container *v1.Container
	id        string
	from      v1.ResourceRequirements
	restart   bool
}

// changes finds the running containers that have other amounts than those allocated to them. A container that is seen
// for the first time has those that it had before, or was made with what was allocated.
func (e *Edged) changes(pod *v1.Pod, obs *observed.Pod) []change {
	before, _ := e.statuses.Get(pod.UID)
	e.sizes.mu.Lock()
	defer e.sizes.mu.Unlock()
	have := e.sizes.of(e, pod)
	var out []change
	live := map[string]bool{}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			o := obs.Container(c.Name)
			if !o.Running() {
				continue
			}
			live[o.ID] = true
			from, known := have.running[o.ID]
			if !known {
				from = c.Resources
				if told := toldOf(&before, c.Name, o.ID); told != nil {
					from = *told
				}
				have.running[o.ID] = from
			}
			if !resize.Same(from, c.Resources) {
				out = append(out, change{c, o.ID, from, resize.Restarts(c, from, c.Resources)})
			}
		}
	}
	for id := range have.running {
		if !live[id] {
			delete(have.running, id)
		}
	}
	return out
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

// resize gives running containers what was allocated to them: first room in the pod's cgroup for both what they have and
// what they get, then each container its part. Containers that have to be started again for it are returned, as probes
// that have failed; the pod's cgroup is brought down by resized.
func (e *Edged) resize(ctx context.Context, pod *v1.Pod, obs *observed.Pod, probes observed.Probes) (observed.Probes, error) {
	changes := e.changes(pod, obs)
	if len(changes) == 0 {
		return probes, nil
	}
	e.sizes.mu.Lock()
	e.sizes.of(e, pod).going = true // also where the agent began in its middle
	e.sizes.mu.Unlock()
	had := resize.Of(pod)
	for _, c := range changes {
		had[c.container.Name] = c.from
	}
	if err := e.cgroups.ResizePod(resize.Larger(resize.Of(pod), had).On(pod)); err != nil {
		return probes, fmt.Errorf("resize cgroup of pod %s: %w", klog.KObj(pod), err)
	}
	var errs []error
	for _, c := range changes {
		if c.restart {
			probes = probes.Stopped(c.id, fmt.Sprintf("Container %s resize requires restart, will be restarted", c.container.Name))
			continue
		}
		if err := e.resizeContainer(ctx, pod, c); err != nil {
			errs = append(errs, fmt.Errorf("resize container %s: %w", c.container.Name, err))
			continue
		}
		e.sizes.mu.Lock()
		e.sizes.of(e, pod).running[c.id] = c.container.Resources
		e.sizes.mu.Unlock()
	}
	return probes, errors.Join(errs...)
}

func (e *Edged) resizeContainer(ctx context.Context, pod *v1.Pod, c change) error {
	if resize.Shrinks(c.from, c.container.Resources) {
		limit := c.container.Resources.Limits.Memory().Value()
		stats, err := e.client.ContainerStats(ctx, &runtimeapi.ContainerStatsRequest{ContainerId: c.id})
		if err != nil {
			return fmt.Errorf("memory in use: %w", err)
		}
		if used := stats.GetStats().GetMemory().GetWorkingSetBytes().GetValue(); int64(used) > limit {
			return fmt.Errorf("attempting to set container %s memory limit (%d) below current usage (%d)", c.container.Name, limit, used)
		}
	}
	_, err := e.client.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{
		ContainerId: c.id, Linux: e.cgroups.ContainerResources(pod, c.container),
	})
	return err
}

// resized ends a resize, when all containers run with what was allocated, and notes what stands in its way otherwise.
func (e *Edged) resized(pod *v1.Pod, obs *observed.Pod, failed error) error {
	left := e.changes(pod, obs)
	e.sizes.mu.Lock()
	have := e.sizes.of(e, pod)
	was, wasFailed := have.going, have.failed
	have.going, have.failed = len(left) > 0 || failed != nil, ""
	if failed != nil {
		have.failed = failed.Error()
	}
	e.sizes.mu.Unlock()
	switch {
	case failed != nil && wasFailed != failed.Error():
		e.recorder.Eventf(pod, v1.EventTypeWarning, eventResizeError, "Pod resize error: %v", failed)
	case was && len(left) == 0 && failed == nil:
		if err := e.cgroups.ResizePod(pod); err != nil {
			return fmt.Errorf("resize cgroup of pod %s: %w", klog.KObj(pod), err)
		}
		e.recorder.Eventf(pod, v1.EventTypeNormal, eventResizeCompleted, "Pod resize completed")
	}
	return nil
}

// sizeOf is what a status says of a pod's resize: with what its containers run, and the conditions.
func (e *Edged) sizeOf(pod *v1.Pod, obs *observed.Pod) (map[string]v1.ResourceRequirements, []v1.PodCondition) {
	e.changes(pod, obs) // containers that are new are known then
	e.sizes.mu.Lock()
	defer e.sizes.mu.Unlock()
	have := e.sizes.of(e, pod)
	running := map[string]v1.ResourceRequirements{}
	if obs != nil {
		for _, c := range obs.Containers {
			if r, ok := have.running[c.ID]; ok {
				running[c.Name] = r
			}
		}
	}
	var conditions []v1.PodCondition
	if why := have.pending; why != nil {
		conditions = append(conditions, v1.PodCondition{Type: v1.PodResizePending, Status: v1.ConditionTrue, Reason: why.Reason, Message: why.Message})
	}
	if have.going {
		c := v1.PodCondition{Type: v1.PodResizeInProgress, Status: v1.ConditionTrue, Message: have.failed}
		if have.failed != "" {
			c.Reason = v1.PodReasonError
		}
		conditions = append(conditions, c)
	}
	return running, conditions
}
