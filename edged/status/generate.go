// Package status makes a pod's v1.PodStatus from its spec, what the runtime has, and what was said
// before, in the kubelet's words; and keeps the newest of each pod. Generate is pure: asked again with its
// own answer as what was said before, it gives the same answer.
//
// Promises: a phase that is final (Succeeded, Failed) stays; restart counts never go down; a condition's
// transition time changes only when its value does.
package status

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/edged/cgroups"
	"github.com/edgecore-io/edgecore/edged/observed"
)

// Inputs is all that a status is made from.
type Inputs struct {
	Pod *v1.Pod
	// Observed is what the runtime has; nil when that is not known, or nothing.
	Observed *observed.Pod
	// Runtime is the name in container ids ("containerd").
	Runtime string
	// Reasons says, by container name, why a container waits.
	Reasons map[string]observed.Reason
	// SandboxReason says why there is no sandbox.
	SandboxReason *observed.Reason
	// Previous is the status of before: from this agent, or restored from the store.
	Previous v1.PodStatus
	// HostIPs are the node's addresses.
	HostIPs []string
	// Rejected says why the node does not take the pod.
	Rejected *observed.Reason
	// Terminated: nothing of the pod runs any more, or will.
	Terminated bool
	Now        time.Time
}

// Terminal tells whether a phase is final.
func Terminal(phase v1.PodPhase) bool { return phase == v1.PodSucceeded || phase == v1.PodFailed }

// Generate makes the status of a pod.
func Generate(in Inputs) v1.PodStatus {
	if in.Rejected != nil {
		return rejected(in)
	}
	out := v1.PodStatus{
		StartTime:          startTime(in),
		QOSClass:           cgroups.QOS(in.Pod),
		HostIP:             first(in.HostIPs),
		HostIPs:            hostIPs(in.HostIPs),
		ObservedGeneration: in.Pod.Generation,
		NominatedNodeName:  in.Previous.NominatedNodeName,
	}
	setPodIPs(&out, in)
	out.InitContainerStatuses = containerStatuses(in, in.Pod.Spec.InitContainers, in.Previous.InitContainerStatuses, true)
	out.ContainerStatuses = containerStatuses(in, in.Pod.Spec.Containers, in.Previous.ContainerStatuses, false)
	setReadiness(in.Pod, &out)
	out.Phase = phase(in, &out)
	if Terminal(in.Previous.Phase) {
		// What has ended stays as it ended.
		out.Phase, out.Reason, out.Message = in.Previous.Phase, in.Previous.Reason, in.Previous.Message
	}
	if Terminal(out.Phase) {
		unready(&out)
	}
	out.Conditions = conditions(in, &out)
	return out
}

// rejected is the status of a pod that the node does not take.
func rejected(in Inputs) v1.PodStatus {
	return v1.PodStatus{
		Phase: v1.PodFailed, Reason: in.Rejected.Reason, Message: "Pod was rejected: " + in.Rejected.Message,
		StartTime: startTime(in), QOSClass: cgroups.QOS(in.Pod), HostIP: first(in.HostIPs), HostIPs: hostIPs(in.HostIPs),
		ObservedGeneration: in.Pod.Generation,
	}
}

func startTime(in Inputs) *metav1.Time {
	if in.Previous.StartTime != nil {
		return in.Previous.StartTime
	}
	// To the second, as it travels.
	return &metav1.Time{Time: in.Now.Truncate(time.Second)}
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

func hostIPs(ips []string) []v1.HostIP {
	var out []v1.HostIP
	for _, ip := range ips {
		out = append(out, v1.HostIP{IP: ip})
	}
	return out
}

// setPodIPs sets the pod's addresses: the node's on the host network, else those of the sandbox. A pod that
// has ended keeps the ones that it had.
func setPodIPs(out *v1.PodStatus, in Inputs) {
	var ips []string
	box := in.Observed.Sandbox()
	switch {
	case in.Pod.Spec.HostNetwork:
		if box != nil || in.Previous.PodIP != "" {
			ips = in.HostIPs
		}
	case box != nil && box.Ready:
		ips = box.IPs
	case Terminal(in.Previous.Phase) || in.Terminated:
		out.PodIP, out.PodIPs = in.Previous.PodIP, in.Previous.PodIPs
		return
	}
	out.PodIP = first(ips)
	for _, ip := range ips {
		out.PodIPs = append(out.PodIPs, v1.PodIP{IP: ip})
	}
}

// phase sums the containers up.
func phase(in Inputs, out *v1.PodStatus) v1.PodPhase {
	spec := &in.Pod.Spec
	failedInit, pendingInit := false, 0
	for i, c := range spec.InitContainers {
		s := out.InitContainerStatuses[i]
		switch t := s.State.Terminated; {
		case sidecar(&c):
			if s.Started == nil || !*s.Started {
				pendingInit++
			}
		case t == nil && !lastSucceeded(s):
			pendingInit++
		case t != nil && t.ExitCode != 0:
			pendingInit++
			failedInit = failedInit || spec.RestartPolicy == v1.RestartPolicyNever
		}
	}
	var running, waiting, succeeded, failed int
	for _, s := range out.ContainerStatuses {
		switch {
		case s.State.Running != nil:
			running++
		case s.State.Terminated != nil:
			if s.State.Terminated.ExitCode == 0 {
				succeeded++
			} else {
				failed++
			}
		case s.LastTerminationState.Terminated != nil && s.State.Waiting != nil && s.State.Waiting.Reason == crashLoopBackOff:
			failed++ // between two attempts
			running++
		default:
			waiting++
		}
	}
	switch {
	case failedInit:
		return v1.PodFailed
	case pendingInit > 0 && running+succeeded+failed == 0:
		if in.Terminated {
			return ended(failed + 1)
		}
		return v1.PodPending
	case waiting > 0 && !in.Terminated && running+succeeded+failed == 0:
		return v1.PodPending
	case waiting > 0 && !in.Terminated:
		if in.Previous.Phase == v1.PodRunning || running > 0 {
			return v1.PodRunning
		}
		return v1.PodPending
	case running > 0 && !in.Terminated:
		return v1.PodRunning
	case in.Terminated:
		return ended(failed + waiting + running)
	case spec.RestartPolicy == v1.RestartPolicyAlways:
		return v1.PodRunning // all between two attempts
	case failed == 0:
		return v1.PodSucceeded
	case spec.RestartPolicy == v1.RestartPolicyNever:
		return v1.PodFailed
	}
	return v1.PodRunning
}

func ended(failed int) v1.PodPhase {
	if failed > 0 {
		return v1.PodFailed
	}
	return v1.PodSucceeded
}

func sidecar(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// lastSucceeded: an init container that ended well and is not run again.
func lastSucceeded(s v1.ContainerStatus) bool {
	return s.Ready && s.State.Waiting != nil
}

// setReadiness sets Ready and Started, which without probes follow from the state.
func setReadiness(pod *v1.Pod, out *v1.PodStatus) {
	set := func(s *v1.ContainerStatus, ready bool) {
		started := s.State.Running != nil
		s.Ready, s.Started = ready, &started
	}
	for i := range out.ContainerStatuses {
		s := &out.ContainerStatuses[i]
		set(s, s.State.Running != nil)
	}
	for i := range out.InitContainerStatuses {
		s := &out.InitContainerStatuses[i]
		if sidecar(&pod.Spec.InitContainers[i]) {
			set(s, s.State.Running != nil)
		} else {
			set(s, s.State.Terminated != nil && s.State.Terminated.ExitCode == 0)
		}
	}
}

func unready(out *v1.PodStatus) {
	for i := range out.ContainerStatuses {
		out.ContainerStatuses[i].Ready = false
	}
}

// conditions makes the pod's conditions, keeping those that are not this agent's.
func conditions(in Inputs, out *v1.PodStatus) []v1.PodCondition {
	sandboxReady := v1.ConditionFalse
	if box := in.Observed.Sandbox(); box != nil && box.Ready && (in.Pod.Spec.HostNetwork || len(box.IPs) > 0) && !Terminal(out.Phase) {
		sandboxReady = v1.ConditionTrue
	}
	list := []v1.PodCondition{
		{Type: v1.PodReadyToStartContainers, Status: sandboxReady},
		initializedCondition(in.Pod, out),
		readyCondition(v1.PodReady, in.Pod, out),
		readyCondition(v1.ContainersReady, in.Pod, out),
		{Type: v1.PodScheduled, Status: v1.ConditionTrue},
	}
	for i := range list {
		c := &list[i]
		c.ObservedGeneration = in.Pod.Generation
		at := slices.IndexFunc(in.Previous.Conditions, func(p v1.PodCondition) bool { return p.Type == c.Type })
		if at >= 0 && in.Previous.Conditions[at].Status == c.Status {
			c.LastTransitionTime = in.Previous.Conditions[at].LastTransitionTime
		} else {
			c.LastTransitionTime = metav1.Time{Time: in.Now.Truncate(time.Second)}
		}
	}
	for _, p := range in.Previous.Conditions {
		if !slices.ContainsFunc(list, func(c v1.PodCondition) bool { return c.Type == p.Type }) {
			list = append(list, p)
		}
	}
	return list
}
