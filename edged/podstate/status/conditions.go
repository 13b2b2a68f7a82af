package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/restart"
)

// Reasons of conditions.
const (
	podCompleted             = "PodCompleted"
	podFailed                = "PodFailed"
	containersNotReady       = "ContainersNotReady"
	containersNotInitialized = "ContainersNotInitialized"
	readinessGatesNotReady   = "ReadinessGatesNotReady"
)

// most is how many conditions a pod has at most: as many as there are types, without those of a resize.
const most = 7

// conditions makes those of the pod's conditions that are this agent's. phase is that of the containers, which may be
// final before the reported one is.
func conditions(in Inputs, out *v1.PodStatus, phase v1.PodPhase) []v1.PodCondition {
	list := make([]v1.PodCondition, 0, most)
	if c := disruption(in, out.Phase); c != nil {
		list = append(list, *c)
	}
	sandboxReady := v1.ConditionFalse
	if in.Observed.SandboxUsable(in.Pod.Spec.HostNetwork) {
		sandboxReady = v1.ConditionTrue
	}
	list = append(list,
		v1.PodCondition{Type: v1.PodReadyToStartContainers, Status: sandboxReady},
		initializedCondition(in, out, phase),
		readyCondition(v1.PodReady, in.Pod, out, phase),
		readyCondition(v1.ContainersReady, in.Pod, out, phase),
		v1.PodCondition{Type: v1.PodScheduled, Status: v1.ConditionTrue},
	)
	for i := range list {
		if list[i].ObservedGeneration == 0 {
			list[i].ObservedGeneration = in.Pod.Generation
		}
	}
	if c := restartingCondition(in, phase); c != nil {
		list = append(list, *c)
	}
	for i := range list {
		c := &list[i]
		if before := previous(in, c.Type); before != nil && before.Status == c.Status {
			if c.LastTransitionTime.IsZero() {
				c.LastTransitionTime = before.LastTransitionTime
			}
			if Terminal(in.Previous.Phase) { // what has ended stays as it ended
				c.Reason, c.Message = before.Reason, before.Message
			}
		}
		if c.LastTransitionTime.IsZero() {
			c.LastTransitionTime = metav1.Time{Time: in.Now.Truncate(time.Second)}
		}
	}
	if !Terminal(out.Phase) && len(in.Resize) > 0 {
		list = append(slices.Clone(in.Resize), list...) // which have a generation and times of their own
	}
	return list
}

// previous is a condition of the previous status, or nil.
func previous(in Inputs, kind v1.PodConditionType) *v1.PodCondition {
	if i := slices.IndexFunc(in.Previous.Conditions, func(c v1.PodCondition) bool { return c.Type == kind }); i >= 0 {
		return &in.Previous.Conditions[i]
	}
	return nil
}

// disruption is the condition which says that this agent ended the pod; nil where it did not. It comes with the
// final phase, and stays. Those of others are not reported: what this agent knows of them may be older than what they
// have said since.
func disruption(in Inputs, phase v1.PodPhase) *v1.PodCondition {
	if c := previous(in, v1.DisruptionTarget); c != nil && c.Reason == v1.PodReasonTerminationByKubelet {
		return c
	}
	if in.Stopped == nil || in.Stopped.Condition == nil || !Terminal(phase) || Terminal(in.Previous.Phase) {
		return nil
	}
	c := *in.Stopped.Condition
	c.LastTransitionTime = metav1.Time{} // when it is reported
	return &c
}

// initializedCondition says whether the init containers have done their work. What was initialized once remains so,
// also while the init containers run again in a new sandbox.
func initializedCondition(in Inputs, out *v1.PodStatus, phase v1.PodPhase) v1.PodCondition {
	c := v1.PodCondition{Type: v1.PodInitialized, Status: v1.ConditionTrue}
	if phase == v1.PodSucceeded {
		c.Reason = podCompleted
		return c
	}
	begun := slices.ContainsFunc(out.ContainerStatuses, func(s v1.ContainerStatus) bool {
		return s.State.Running != nil || s.State.Terminated != nil
	})
	switch before := previous(in, v1.PodInitialized); {
	case before != nil && Terminal(in.Previous.Phase):
		c.Status = before.Status
		return c
	case begun, before != nil && before.Status == v1.ConditionTrue:
		return c
	}
	var open []string
	for i, s := range out.InitContainerStatuses {
		done := s.Ready
		if restart.IsSidecar(&in.Pod.Spec.InitContainers[i]) {
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
func readyCondition(kind v1.PodConditionType, pod *v1.Pod, out *v1.PodStatus, phase v1.PodPhase) v1.PodCondition {
	c := v1.PodCondition{Type: kind, Status: v1.ConditionTrue}
	switch phase {
	case v1.PodSucceeded:
		c.Status, c.Reason = v1.ConditionFalse, podCompleted
		return c
	case v1.PodFailed:
		c.Status, c.Reason = v1.ConditionFalse, podFailed
		return c
	}
	var open []string
	for i, s := range out.InitContainerStatuses {
		if restart.IsSidecar(&pod.Spec.InitContainers[i]) && !s.Ready {
			open = append(open, s.Name)
		}
	}
	for _, spec := range pod.Spec.Containers {
		if !find(out.ContainerStatuses, spec.Name).Ready {
			open = append(open, spec.Name)
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
		at := slices.IndexFunc(pod.Status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == gate.ConditionType
		})
		switch {
		case at < 0:
			shut = append(shut, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.",
				gate.ConditionType))
		case pod.Status.Conditions[at].Status != v1.ConditionTrue:
			shut = append(shut, fmt.Sprintf("the status of pod readiness gate %q is not %q, but %v", gate.ConditionType,
				v1.ConditionTrue, pod.Status.Conditions[at].Status))
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
