// Package status generates a pod's v1.PodStatus from its spec, its containers in the runtime, and its previous status,
// by the kubelet's rules, and keeps the newest status of each pod. Generate and Conclude are pure: asked again with
// their own answer as the previous status, they give the same answer.
//
// # The two phases
//
// The phase of the containers follows from their states (phase.go). It decides what the agent does: once it is final,
// nothing of the pod is started again, and what still runs is stopped. The phase that is reported is the same, but a
// final one is held back until nothing of the pod runs any more: a Job whose sidecar still writes is not complete, and
// anyone who waits for the pod's volumes or devices must not go on. The conditions follow the phase of the containers,
// so that a pod whose containers have ended is not ready.
//
// Promises: a reported phase that is final (Succeeded, Failed) stays; restart counts never go down; a condition's
// transition time changes only when its value does.
package status

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/admission"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/restart"
	"github.com/edgecore-io/edgecore/pkg/smallsort"
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
	// Previous is the status reported before: by this agent, restored from the store, or read from the API server.
	Previous v1.PodStatus
	// Restored: Previous was reported by an earlier run of the agent, perhaps before a reboot.
	Restored bool
	// Running is the cpu and memory with which containers run, by container name, where they were allocated other
	// amounts; under "" that of the pod's cgroup, where the pod has pod-level resources.
	Running map[string]v1.ResourceRequirements
	// Resize are the conditions of a resize.
	Resize []v1.PodCondition
	// HostIPs are the node's addresses; none while it has no network.
	HostIPs []string
	// IPv6First: of a pod's addresses the IPv6 one is the primary one.
	IPv6First bool
	// Rejected says why the node does not take the pod.
	Rejected *observed.Reason
	// Stopped says why the node ends the pod; nil where it does not.
	Stopped *Stopped
	// Devices is how the devices of containers are, by container name.
	Devices map[string][]v1.ResourceStatus
	// RecursiveReadOnly: the pod's runtime can make mounts read-only with all that is below them.
	RecursiveReadOnly bool
	// Static: the pod comes from a manifest on this node. One that is stopped is not failed: it has no final phase.
	Static bool
	// Terminated: nothing of the pod runs any more, or will.
	Terminated bool
	Now        time.Time
}

// Stopped is why a node ends a pod that is still wanted: the pod fails with this reason when nothing of it runs.
type Stopped struct {
	Reason, Message string
	// Condition is reported with the final phase; nil reports none.
	Condition *v1.PodCondition
	// Grace, in seconds, is how long its containers may take at the longest; nil leaves it to the pod.
	Grace *int64
	// Unready: the pod counts as failed from the decision on, so that Services send it nothing more while it ends.
	Unready bool
}

// Terminal reports whether a phase is final.
func Terminal(phase v1.PodPhase) bool { return phase == v1.PodSucceeded || phase == v1.PodFailed }

// Generate makes the status of a pod. finished reports whether its containers have ended for good, so that what still
// runs of the pod is to be stopped; the reported phase becomes final when Terminated says that it was.
func Generate(in Inputs) (status v1.PodStatus, finished bool) {
	if in.Rejected != nil {
		return rejected(in), true
	}
	hostIPs := in.hostIPs()
	out := v1.PodStatus{
		StartTime:          startTime(in),
		QOSClass:           admission.QOS(in.Pod),
		HostIPs:            hostIPs,
		ObservedGeneration: max(in.Pod.Generation, in.Previous.ObservedGeneration),
		NominatedNodeName:  in.Previous.NominatedNodeName,
	}
	if len(hostIPs) > 0 {
		out.HostIP = hostIPs[0].IP
	}
	setPodIPs(&out, in)
	setContainers(in, &out)
	setReadiness(in, &out)
	phase := phaseOf(in, &out)
	if Terminal(in.Previous.Phase) {
		phase = in.Previous.Phase // what has ended stays as it ended
	}
	setPhase(in, &out, phase)
	if in.Stopped != nil && in.Stopped.Unready {
		phase = v1.PodFailed
	}
	if Terminal(out.Phase) {
		phase = out.Phase
	}
	setResources(in, &out)
	out.Conditions = conditions(in, &out, phase)
	return out, Terminal(phase)
}

// rejectedPrefix begins the message of a pod that the node does not take.
const rejectedPrefix = "Pod was rejected: "

// WasRejected reports whether a status is that of a pod that the node did not take: nothing of it ever ran.
func WasRejected(s *v1.PodStatus) bool {
	return s.Phase == v1.PodFailed && strings.HasPrefix(s.Message, rejectedPrefix) && len(s.ContainerStatuses) == 0
}

// rejected is the status of a pod that the node does not take.
func rejected(in Inputs) v1.PodStatus {
	return v1.PodStatus{
		Phase: v1.PodFailed, Reason: in.Rejected.Reason, Message: rejectedPrefix + in.Rejected.Message,
		StartTime: startTime(in), QOSClass: admission.QOS(in.Pod), ObservedGeneration: in.Pod.Generation,
	}
}

// setPhase sets the phase to report, its reason and its message, from the phase of the containers.
func setPhase(in Inputs, out *v1.PodStatus, phase v1.PodPhase) {
	before := &in.Previous
	switch {
	case Terminal(before.Phase):
		out.Phase, out.Reason, out.Message = before.Phase, before.Reason, before.Message
	case in.Stopped != nil && in.Terminated:
		out.Phase, out.Reason, out.Message = v1.PodFailed, in.Stopped.Reason, in.Stopped.Message
	case Terminal(phase) && !in.Terminated:
		out.Phase, out.Reason, out.Message = cmp.Or(before.Phase, v1.PodPending), before.Reason, before.Message
	case phase == before.Phase:
		out.Phase, out.Reason, out.Message = phase, before.Reason, before.Message
	default:
		out.Phase = phase
	}
}

// setResources sets the resources of the pod as a whole.
func setResources(in Inputs, out *v1.PodStatus) {
	if Terminal(in.Previous.Phase) {
		out.Resources, out.AllocatedResources = in.Previous.Resources, in.Previous.AllocatedResources
		return
	}
	of := admission.StatusResources(in.Pod)
	if running, ok := in.Running[""]; ok {
		maps.Copy(of.Requests, running.Requests)
		maps.Copy(of.Limits, running.Limits)
	}
	out.Resources, out.AllocatedResources = &of, admission.Requests(in.Pod)
}

func startTime(in Inputs) *metav1.Time {
	if in.Previous.StartTime != nil {
		return in.Previous.StartTime
	}
	// To the second, as it travels.
	return &metav1.Time{Time: in.Now.Truncate(time.Second)}
}

// hostIPs are the node's addresses, at most two; the previous ones while it has none.
func (in *Inputs) hostIPs() []v1.HostIP {
	if len(in.HostIPs) == 0 {
		return in.Previous.HostIPs
	}
	var out []v1.HostIP
	for _, ip := range in.HostIPs[:min(2, len(in.HostIPs))] {
		out = append(out, v1.HostIP{IP: ip})
	}
	return out
}

// setPodIPs sets the pod's addresses: the node's on the host network, else those of the sandbox. While no sandbox is
// ready the pod keeps the ones that it had; after a restart of the agent only if it has ended, since another pod may
// have them by now.
func setPodIPs(out *v1.PodStatus, in Inputs) {
	switch box := in.Observed.Sandbox(); {
	case in.Pod.Spec.HostNetwork:
		for _, ip := range out.HostIPs {
			out.PodIPs = append(out.PodIPs, v1.PodIP(ip))
		}
	case in.Observed.SandboxReady():
		if box.Ready {
			for _, ip := range SortIPs(box.IPs, in.IPv6First) {
				out.PodIPs = append(out.PodIPs, v1.PodIP{IP: ip})
			}
		}
	case in.Terminated, Terminal(in.Previous.Phase), box != nil && !in.Restored:
		out.PodIPs = in.Previous.PodIPs
	}
	if len(out.PodIPs) > 0 {
		out.PodIP = out.PodIPs[0].IP
	}
}

// SortIPs returns a pod's addresses as they are reported: the first one of each family, that of the node's own family
// first. What is not an address is left out.
func SortIPs(ips []string, ipv6First bool) []string {
	var four, six []string
	for _, text := range ips {
		ip, err := netip.ParseAddr(text)
		switch {
		case err != nil:
		case ip.Is4() || ip.Is4In6():
			four = append(four, ip.Unmap().String())
		default:
			six = append(six, ip.String())
		}
	}
	four, six = four[:min(1, len(four))], six[:min(1, len(six))]
	if ipv6First {
		return slices.Concat(six, four)
	}
	return slices.Concat(four, six)
}

// setContainers makes the statuses of all containers: those of init containers in the spec's order, the others by
// name.
func setContainers(in Inputs, out *v1.PodStatus) {
	var ephemeral []v1.Container
	for _, e := range in.Pod.Spec.EphemeralContainers {
		ephemeral = append(ephemeral, v1.Container(e.EphemeralContainerCommon))
	}
	before := &in.Previous
	out.InitContainerStatuses = containerStatuses(in, in.Pod.Spec.InitContainers, before.InitContainerStatuses, true)
	out.ContainerStatuses = containerStatuses(in, in.Pod.Spec.Containers, before.ContainerStatuses, false)
	out.EphemeralContainerStatuses = containerStatuses(in, ephemeral, before.EphemeralContainerStatuses, false)
	for _, list := range [][]v1.ContainerStatus{out.ContainerStatuses, out.EphemeralContainerStatuses} {
		smallsort.SortStableFunc(list, func(a, b v1.ContainerStatus) int { return cmp.Compare(a.Name, b.Name) })
	}
}

// setReadiness sets Ready and Started, which follow from the state and from what the probes say. Ephemeral containers
// have neither.
func setReadiness(in Inputs, out *v1.PodStatus) {
	set := func(s *v1.ContainerStatus) {
		says := in.Probes.Of(in.Observed.Container(s.Name))
		started := s.State.Running != nil && says.Started
		s.Started = &started
		if started {
			s.Ready = says.Ready
		}
	}
	for i := range out.ContainerStatuses {
		set(&out.ContainerStatuses[i])
	}
	for i := range out.InitContainerStatuses {
		s := &out.InitContainerStatuses[i]
		set(s)
		if t := s.State.Terminated; !restart.IsSidecar(&in.Pod.Spec.InitContainers[i]) {
			s.Ready = s.State.Running == nil && s.Ready || t != nil && t.ExitCode == 0
		}
	}
}
