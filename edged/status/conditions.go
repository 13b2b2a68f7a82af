package status

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// Reasons of conditions.
const (
	podCompleted             = "PodCompleted"
	podFailed                = "PodFailed"
	containersNotReady       = "ContainersNotReady"
	containersNotInitialized = "ContainersNotInitialized"
)

func initializedCondition(pod *v1.Pod, out *v1.PodStatus) v1.PodCondition {
	c := v1.PodCondition{Type: v1.PodInitialized, Status: v1.ConditionTrue}
	if out.Phase == v1.PodSucceeded {
		c.Reason = podCompleted
		return c
	}
	// Once a container was started, the init containers have done their work for good.
	for _, s := range out.ContainerStatuses {
		if s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil {
			return c
		}
	}
	var open []string
	for i, s := range out.InitContainerStatuses {
		done := s.Ready
		if sidecar(&pod.Spec.InitContainers[i]) {
			done = s.Started != nil && *s.Started
		}
		if !done {
			open = append(open, s.Name)
		}
	}
	if len(open) > 0 {
		c.Status, c.Reason = v1.ConditionFalse, containersNotInitialized
		c.Message = fmt.Sprintf("containers with incomplete status: %v", open)
	}
	return c
}

// readyCondition is Ready or ContainersReady, which differ by readiness gates alone.
func readyCondition(kind v1.PodConditionType, pod *v1.Pod, out *v1.PodStatus) v1.PodCondition {
	c := v1.PodCondition{Type: kind, Status: v1.ConditionTrue}
	switch out.Phase {
	case v1.PodSucceeded:
		c.Status, c.Reason = v1.ConditionFalse, podCompleted
		return c
	case v1.PodFailed:
		c.Status, c.Reason = v1.ConditionFalse, podFailed
		return c
	}
	var open []string
	for i, s := range out.InitContainerStatuses {
		if sidecar(&pod.Spec.InitContainers[i]) && !s.Ready {
			open = append(open, s.Name)
		}
	}
	for _, s := range out.ContainerStatuses {
		if !s.Ready {
			open = append(open, s.Name)
		}
	}
	if len(open) > 0 {
		c.Status, c.Reason = v1.ConditionFalse, containersNotReady
		c.Message = fmt.Sprintf("containers with unready status: %v", open)
	}
	return c
}
