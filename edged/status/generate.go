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
	"github.com/edgecore-io/edgecore/edged/restart"
)

// Inputs is all that a status is made from.
type Inputs struct {
	Pod *v1.Pod
	// Observed is what the runtime has; nil when that is not known, or nothing.
	Observed *observed.Pod
	// Runtime is the name in container ids ("containerd").
	Runtime string
	// Probes is what the probes say of the running containers.
	Probes observed.Probes
	// Reasons says, by container name, why a container waits.
	Reasons map[string]observed.Reason
	// SandboxReason says why there is no sandbox.
	SandboxReason *observed.Reason
	// Previous is the status of before: from this agent, or restored from the store.
	Previous v1.PodStatus
	// Running is the cpu and memory with which containers run, by container name, where they were allocated other amounts;
	// under "" that of the pod's cgroup, where the pod has pod-level resources.
	Running map[string]v1.ResourceRequirements
	// Resize are the conditions of a resize.
	Resize []v1.PodCondition
	// HostIPs are the node's addresses.
	HostIPs []string
	// Rejected says why the node does not take the pod.
	Rejected *observed.Reason
	// Stopped says why the node ends the pod; nil where it does not.
	Stopped *Stopped
	// Devices is how the devices of containers are, by container name.
	Devices map[string][]v1.ResourceStatus
	// RecursiveReadOnly: the pod's runtime can make mounts read-only with all that is below them.
	RecursiveReadOnly bool
	// Terminated: nothing of the pod runs any more, or will.
	Terminated bool
	Now        time.Time
}

// Stopped is why a node ends a pod that is still wanted: the pod fails with this reason when nothing of it runs.
type Stopped struct {
	Reason, Message string
	// Condition is shown from the decision on; nil shows none.
	Condition *v1.PodCondition
	// Grace, in seconds, is how long its containers may take at the longest; nil leaves it to the pod.
	Grace *int64
	// Unready: the pod counts as failed from the decision on, so that Services send it nothing more while it ends.
	Unready bool
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
	if r := in.Pod.Spec.Resources; r != nil {
		has := *r
		if running, ok := in.Running[""]; ok {
			has = running
		}
		out.Resources = &v1.ResourceRequirements{Limits: has.Limits.DeepCopy(), Requests: has.Requests.DeepCopy()}
		out.AllocatedResources = r.Requests.DeepCopy()
	}
	out.InitContainerStatuses = containerStatuses(in, in.Pod.Spec.InitContainers, in.Previous.InitContainerStatuses, true)
	out.ContainerStatuses = containerStatuses(in, in.Pod.Spec.Containers, in.Previous.ContainerStatuses, false)
	out.EphemeralContainerStatuses = ephemeralStatuses(in)
	setReadiness(in, &out)
	out.Phase = phase(in, &out)
	if in.Stopped != nil && (in.Terminated || Terminal(out.Phase)) {
		out.Phase, out.Reason, out.Message = v1.PodFailed, in.Stopped.Reason, in.Stopped.Message
	}
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
			failedInit = failedInit || restart.After(in.Pod, &c, t.ExitCode) == restart.Stay
		case t != nil && !in.Terminated && restart.After(in.Pod, &c, t.ExitCode) != restart.Stay:
			pendingInit++ // a rule has it run again
		}
	}
	var running, waiting, succeeded, failed int
	for i, s := range out.ContainerStatuses {
		t := s.State.Terminated
		switch {
		case s.State.Running != nil:
			running++
		case t != nil && !in.Terminated && restart.After(in.Pod, &spec.Containers[i], t.ExitCode) != restart.Stay:
			running++ // between two attempts
		case t != nil && t.ExitCode == 0:
			succeeded++
		case t != nil:
			failed++
		case s.LastTerminationState.Terminated != nil && s.State.Waiting != nil && betweenAttempts(s.State.Waiting.Reason):
			failed++
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
	}
	return ended(failed) // every container has ended for good
}

func ended(failed int) v1.PodPhase {
	if failed > 0 {
		return v1.PodFailed
	}
	return v1.PodSucceeded
}

func sidecar(c *v1.Container) bool { return restart.IsSidecar(c) }

// betweenAttempts tells whether a container that waits for this reason has run already.
func betweenAttempts(reason string) bool {
	return reason == crashLoopBackOff || reason == postStartHookError
}

// lastSucceeded: an init container that ended well and is not run again.
func lastSucceeded(s v1.ContainerStatus) bool {
	return s.Ready && s.State.Waiting != nil
}

// setReadiness sets Ready and Started, which follow from the state and from what the probes say.
func setReadiness(in Inputs, out *v1.PodStatus) {
	set := func(s *v1.ContainerStatus) {
		says := in.Probes.Of(in.Observed.Container(s.Name))
		running := s.State.Running != nil
		started := running && says.Started
		s.Ready, s.Started = started && says.Ready, &started
	}
	for i := range out.ContainerStatuses {
		set(&out.ContainerStatuses[i])
	}
	for i := range out.InitContainerStatuses {
		s := &out.InitContainerStatuses[i]
		set(s)
		if !sidecar(&in.Pod.Spec.InitContainers[i]) {
			s.Ready = s.State.Terminated != nil && s.State.Terminated.ExitCode == 0
		}
	}
}

func unready(out *v1.PodStatus) {
	for i := range out.ContainerStatuses {
		out.ContainerStatuses[i].Ready = false
	}
}

// oursForGood tells whether a condition was set by this agent and stays. Those of others are not told: what this agent
// knows of them may be older than what they said since.
func oursForGood(c v1.PodCondition) bool {
	return c.Type == v1.DisruptionTarget && c.Reason == v1.PodReasonTerminationByKubelet
}

// conditions makes those of the pod's conditions that are this agent's.
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
	if in.Stopped != nil && in.Stopped.Unready {
		for i := range list {
			if c := &list[i]; c.Type == v1.PodReady || c.Type == v1.ContainersReady {
				c.Status, c.Reason, c.Message = v1.ConditionFalse, podFailed, ""
			}
		}
	}
	if c := restartingCondition(in, out.Phase); c != nil {
		list = append(list, *c)
	}
	if in.Stopped != nil && in.Stopped.Condition != nil {
		list = append(list, *in.Stopped.Condition)
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
	if !Terminal(out.Phase) {
		list = append(list, in.Resize...) // which have a generation and times of their own
	}
	for _, p := range in.Previous.Conditions {
		if oursForGood(p) && !slices.ContainsFunc(list, func(c v1.PodCondition) bool { return c.Type == p.Type }) {
			list = append(list, p)
		}
	}
	return list
}
