package allocation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers/cgroups"
	"github.com/edgecore-io/edgecore/edged/node/stats"
	"github.com/edgecore-io/edgecore/edged/pods/resize"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// change is a running container whose amounts differ from those allocated. from and to are those of its cgroup.
type change struct {
	container *v1.Container
	id        string
	from, to  v1.ResourceRequirements
	restart   bool
}

// changes returns the running containers whose amounts differ from those allocated, and reports whether the pod-level
// amounts differ. A container that is seen for the first time has the amounts that its status reported; if it has none,
// it was created with what was allocated.
func (m *Manager) changes(pod *v1.Pod, obs *observed.Pod) (list []change, podLevel bool) {
	before := m.opts.Pods.Status(pod.UID)
	m.mu.Lock()
	defer m.mu.Unlock()
	have := m.get(pod)
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
				r = container{c.Name, c.Resources, to}
				if reported := reportedResources(&before, c.Name, o.ID); reported != nil {
					r.own, r.cgroup = *reported, resize.Effective(have.podLevel, *reported)
				}
				have.running[o.ID] = r
			}
			if !resize.Same(r.cgroup, to) {
				list = append(list, change{c, o.ID, r.cgroup, to, resize.Restarts(c, r.cgroup, to)})
			}
		}
	}
	for id := range have.running {
		if !live[id] {
			delete(have.running, id)
		}
	}
	return list, have.podLevel != nil && pod.Spec.Resources != nil && !resize.Same(*have.podLevel, *pod.Spec.Resources)
}

// EnsureCgroup creates the cgroup of a pod. Its limits allow for what running containers have, too: only Finish lowers
// limits.
func (m *Manager) EnsureCgroup(pod *v1.Pod) error {
	m.mu.Lock()
	known := m.get(pod).memoryLimit != nil
	m.mu.Unlock()
	if known && m.opts.Cgroups.Has(pod) {
		return nil
	}
	with := m.withRoom(pod)
	if err := m.opts.Cgroups.EnsurePod(with); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if have := m.get(pod); have.memoryLimit == nil {
		have.memoryLimit = new(podMemoryLimit(with))
	}
	return nil
}

// withRoom returns a pod with the larger of what was allocated and what its containers have.
func (m *Manager) withRoom(pod *v1.Pod) *v1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	have, had := m.get(pod), resize.Of(pod)
	for _, r := range have.running {
		if _, ok := had[r.name]; ok {
			had[r.name] = r.own
		}
	}
	if have.podLevel != nil && pod.Spec.Resources != nil {
		had[resize.Whole] = *have.podLevel
	}
	return resize.Larger(resize.Of(pod), had).On(pod)
}

// podMemoryLimit returns the memory limit of a pod's cgroup in bytes; 0 means no limit.
func podMemoryLimit(pod *v1.Pod) int64 {
	return cgroups.PodResources(pod, cgroups.ResourceOptions{}, 0).Memory
}

// setPodCgroup sets the limits of a pod's cgroup.
func (m *Manager) setPodCgroup(ctx context.Context, pod *v1.Pod, obs *observed.Pod) error {
	if err := m.resizePodCgroup(ctx, pod, obs); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	have := m.get(pod)
	have.memoryLimit = new(podMemoryLimit(pod))
	return nil
}

// Resize changes running containers to the allocated amounts. It first raises the limits of the pod's cgroup to what
// the containers have and get; Finish lowers them. Containers that have to be restarted are returned as failed probes.
// Nothing is changed while a memory limit would go below what is in use.
func (m *Manager) Resize(
	ctx context.Context, pod *v1.Pod, obs *observed.Pod, probes observed.Probes,
) (observed.Probes, error) {
	changes, podLevel := m.changes(pod, obs)
	if len(changes) == 0 && !podLevel {
		return probes, nil
	}
	m.mu.Lock()
	if have := m.get(pod); have.inProgress == nil { // the agent was restarted during the resize
		have.inProgress = resize.Condition(v1.PodResizeInProgress, nil, "", "", pod.Generation, time.Now())
	}
	m.mu.Unlock()
	inPlace := slices.DeleteFunc(slices.Clone(changes), func(c change) bool { return c.restart })
	for _, c := range changes {
		if c.restart {
			why := fmt.Sprintf("Container %s resize requires restart, will be restarted", c.container.Name)
			probes = probes.Stopped(c.id, why)
		}
	}
	lower := m.decreases(ctx, inPlace)
	if len(inPlace) == len(changes) { // otherwise the pod's limit follows the restart
		lower = append(lower, m.podDecrease(pod, obs)...)
	}
	if err := resize.CheckMemory(lower); err != nil {
		return probes, err
	}
	if err := m.setPodCgroup(ctx, m.withRoom(pod), obs); err != nil {
		return probes, err
	}
	var errs []error
	for _, c := range inPlace {
		_, err := m.opts.Runtime.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: c.id, Linux: m.opts.Cgroups.ContainerResources(pod, c.container),
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("resize container %s: %w", c.container.Name, err))
			continue
		}
		m.mu.Lock()
		m.get(pod).running[c.id] = container{c.container.Name, c.container.Resources, c.to}
		m.mu.Unlock()
	}
	return probes, errors.Join(errs...)
}

// decreases returns the containers whose memory limit is to be lowered, with the memory that they use.
func (m *Manager) decreases(ctx context.Context, changes []change) []resize.Decrease {
	var list []resize.Decrease
	for _, c := range changes {
		limit := resize.MemoryLimit(c.to)
		if !resize.Decreases(resize.MemoryLimit(c.from), limit) {
			continue
		}
		d := resize.Decrease{Name: c.container.Name, Limit: limit}
		got, err := m.opts.Runtime.ContainerStats(ctx, &runtimeapi.ContainerStatsRequest{ContainerId: c.id})
		if err != nil {
			klog.V(2).InfoS("Memory usage of the container is unknown", "container", c.container.Name, "err", err)
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

// podDecrease returns the memory limit of a running pod's cgroup if it is to be lowered, with the memory in use.
func (m *Manager) podDecrease(pod *v1.Pod, obs *observed.Pod) []resize.Decrease {
	m.mu.Lock()
	have := m.get(pod)
	before := have.memoryLimit
	m.mu.Unlock()
	limit := podMemoryLimit(pod)
	dirs, own := m.opts.Cgroups.PodDirs(pod)
	if before == nil || !own || !resize.Decreases(*before, limit) || !obs.ContainersAlive() {
		return nil
	}
	return []resize.Decrease{{Name: resize.Whole, Limit: limit, Used: stats.MemoryUsage(&dirs)}}
}

// Finish completes a resize once all containers run with what was allocated. Otherwise it records failed, the error of
// Resize, as the condition of the pod. It returns an error of its own only.
func (m *Manager) Finish(ctx context.Context, pod *v1.Pod, obs *observed.Pod, failed error) error {
	left, podLevel := m.changes(pod, obs)
	m.mu.Lock()
	inProgress := m.get(pod).inProgress
	m.mu.Unlock()
	if inProgress == nil && !podLevel && failed == nil {
		return nil
	}
	var err error
	if failed == nil && len(left) == 0 {
		if err = resize.CheckMemory(m.podDecrease(pod, obs)); err == nil {
			err = m.setPodCgroup(ctx, pod, obs)
		}
		failed = err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	have, now := m.get(pod), time.Now()
	switch {
	case failed != nil:
		generation := pod.Generation
		if inProgress != nil {
			generation = inProgress.ObservedGeneration
		}
		message := failed.Error()
		have.inProgress = resize.Condition(v1.PodResizeInProgress, inProgress, v1.PodReasonError, message, generation,
			now)
		if inProgress == nil || inProgress.Reason != have.inProgress.Reason ||
			!resize.SameFailure(inProgress.Message, message) {
			m.opts.Recorder.Eventf(pod, v1.EventTypeWarning, eventResizeError, "%s",
				resize.Message("Pod resize error", pod, generation, message))
		}
	case len(left) == 0:
		if have.podLevel != nil && pod.Spec.Resources != nil {
			have.podLevel = new(*pod.Spec.Resources)
		}
		if inProgress != nil {
			have.inProgress = nil
			m.opts.Recorder.Eventf(pod, v1.EventTypeNormal, eventResizeCompleted, "%s",
				resize.Message("Pod resize completed", pod, inProgress.ObservedGeneration, ""))
			m.opts.Freed()
		}
	}
	return err
}
