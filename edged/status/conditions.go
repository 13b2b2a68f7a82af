package status

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Reasons of conditions.
const (
	podCompleted             = "PodCompleted"
	podFailed                = "PodFailed"
	containersNotReady       = "ContainersNotReady"
	containersNotInitialized = "ContainersNotInitialized"
	readinessGatesNotReady   = "ReadinessGatesNotReady"
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
		return c
	}
	if kind == v1.PodReady {
		if shut := shutGates(pod); len(shut) > 0 {
			c.Status, c.Reason, c.Message = v1.ConditionFalse, readinessGatesNotReady, strings.Join(shut, ", ")
		}
	}
	return c
}

// shutGates says of each readiness gate that is not open why. Gates are conditions that others set on the pod.
func shutGates(pod *v1.Pod) []string {
	var shut []string
	for _, gate := range pod.Spec.ReadinessGates {
		at := slices.IndexFunc(pod.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == gate.ConditionType })
		switch {
		case at < 0:
			shut = append(shut, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", gate.ConditionType))
		case pod.Status.Conditions[at].Status != v1.ConditionTrue:
			shut = append(shut, fmt.Sprintf("the status of pod readiness gate %q is not %q, but %v", gate.ConditionType, v1.ConditionTrue, pod.Status.Conditions[at].Status))
		}
	}
	return shut
}

// WithOthers adds to the conditions of a status, which are this agent's, those that others have set on the pod.
func WithOthers(status v1.PodStatus, pod *v1.Pod) v1.PodStatus {
	own := len(status.Conditions)
	for _, c := range pod.Status.Conditions {
		switch c.Type {
		case v1.PodResizePending, v1.PodResizeInProgress:
			continue // the agent's, though it does not always have them
		}
		if !slices.ContainsFunc(status.Conditions[:own], func(o v1.PodCondition) bool { return o.Type == c.Type }) {
			status.Conditions = append(slices.Clip(status.Conditions), c)
		}
	}
	return status
}
