package status

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/restart"
)

// Conclude completes the status of a pod that is stopped and cleaned up. What has no observed end counts as failed: a
// container without an end, unless the init containers kept it from starting, and a pod without a final phase. A static
// pod is left as it is: nothing waits for its final phase.
func Conclude(pod *v1.Pod, before v1.PodStatus, static bool) v1.PodStatus {
	out := *before.DeepCopy()
	if initialized(pod, &out) {
		endAll(out.ContainerStatuses)
	}
	endAll(begun(out.InitContainerStatuses))
	if !static && !Terminal(out.Phase) {
		out.Phase = v1.PodFailed
	}
	return out
}

// endAll ends containers that have no end.
func endAll(list []v1.ContainerStatus) {
	for i := range list {
		s := &list[i]
		if s.State.Terminated != nil {
			continue
		}
		s.State = v1.ContainerState{
			Terminated: &v1.ContainerStateTerminated{
				Reason: statusUnknown, Message: lostAtEndMessage, ExitCode: exitUnknown,
			},
		}
		s.Ready, s.Started = false, new(false)
	}
}

// begun are the init containers up to the last one that has ever started; the first one is always among them.
func begun(list []v1.ContainerStatus) []v1.ContainerStatus {
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].State.Waiting == nil || list[i].LastTerminationState.Terminated != nil {
			return list[:i+1]
		}
	}
	return list[:min(1, len(list))]
}

// initialized reports whether the containers of a pod could start: it has no init containers, one of its containers has
// started, or the last init container has done its work. A sidecar has ended by now: the condition reports whether it
// had started.
func initialized(pod *v1.Pod, status *v1.PodStatus) bool {
	if len(pod.Spec.InitContainers) == 0 {
		return true
	}
	for _, s := range status.ContainerStatuses {
		if s.LastTerminationState.Terminated != nil || s.State.Waiting == nil {
			return true
		}
	}
	if len(status.InitContainerStatuses) != len(pod.Spec.InitContainers) {
		return false
	}
	last := len(pod.Spec.InitContainers) - 1
	s := &status.InitContainerStatuses[last]
	if restart.IsSidecar(&pod.Spec.InitContainers[last]) {
		return slices.ContainsFunc(status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == v1.PodInitialized && c.Status == v1.ConditionTrue
		})
	}
	for _, state := range []v1.ContainerState{s.State, s.LastTerminationState} {
		if state.Terminated != nil && state.Terminated.ExitCode == 0 {
			return true
		}
	}
	return false
}
