// Package admission decides whether a pod fits on this node, from the pods that are there already.
// It is pure; reasons and messages are the kubelet's.
package admission

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/edgecore-io/edgecore/edged/observed"
)

// Node is what there is to share out.
type Node struct {
	// Allocatable holds cpu, memory and pods; a resource that is missing is not counted.
	Allocatable v1.ResourceList
}

// Admit returns nil when pod fits beside the pods that were admitted before it, and otherwise why it
// does not. Pods among others that have ended must be left out by the caller.
func Admit(node Node, pod *v1.Pod, others []*v1.Pod) *observed.Reason {
	if os := pod.Spec.OS; os != nil && os.Name != v1.Linux {
		return &observed.Reason{Reason: "PodOSNotSupported", Message: fmt.Sprintf("Failed to admit pod as the OS field doesn't match node OS: the pod wants %q, the node has %q", os.Name, v1.Linux)}
	}
	if r := fitsCount(node, others); r != nil {
		return r
	}
	if port := takenPort(pod, others); port != "" {
		return &observed.Reason{Reason: "NodePorts", Message: fmt.Sprintf("Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports (%s is taken)", port)}
	}
	return fitsResources(node, pod, others)
}

func fitsCount(node Node, others []*v1.Pod) *observed.Reason {
	if limit, ok := node.Allocatable[v1.ResourcePods]; ok && int64(len(others))+1 > limit.Value() {
		return insufficient(v1.ResourcePods, 1, int64(len(others)), limit.Value())
	}
	return nil
}

func fitsResources(node Node, pod *v1.Pod, others []*v1.Pod) *observed.Reason {
	wants := Requests(pod)
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage} {
		want := amount(name, wants[name])
		capacity, counted := node.Allocatable[name]
		if want == 0 || !counted {
			continue
		}
		var used int64
		for _, other := range others {
			used += amount(name, Requests(other)[name])
		}
		if used+want > amount(name, capacity) {
			return insufficient(name, want, used, amount(name, capacity))
		}
	}
	return unknownResource(node, wants)
}

// unknownResource finds a request for a resource that the node does not have at all.
func unknownResource(node Node, wants v1.ResourceList) *observed.Reason {
	var missing []v1.ResourceName
	for name, q := range wants {
		switch name {
		case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage:
			continue
		}
		if have := node.Allocatable[name]; q.Sign() > 0 && have.Cmp(q) < 0 {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	want, have := wants[missing[0]], node.Allocatable[missing[0]]
	return insufficient(missing[0], want.Value(), 0, have.Value())
}

func insufficient(name v1.ResourceName, want, used, capacity int64) *observed.Reason {
	return &observed.Reason{
		Reason:  "OutOf" + string(name),
		Message: fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, want, used, capacity),
	}
}

// amount is a quantity in the unit that is counted: thousandths of a core for cpu, else units.
func amount(name v1.ResourceName, q resource.Quantity) int64 {
	if name == v1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// Requests is what a pod asks for as a whole: the sum of its containers and sidecars, or what an
// init container needs beside the sidecars started before it if that is more, plus overhead. A
// pod-level request takes the place of the sum. Source: "Resource sharing within containers" in the
// Kubernetes documentation of init containers and sidecars.
func Requests(pod *v1.Pod) v1.ResourceList {
	total := v1.ResourceList{}
	for i := range pod.Spec.Containers {
		add(total, pod.Spec.Containers[i].Resources.Requests)
	}
	sidecars, peak := v1.ResourceList{}, v1.ResourceList{}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			add(sidecars, c.Resources.Requests)
			add(total, c.Resources.Requests)
			raise(peak, sidecars)
			continue
		}
		with := sidecars.DeepCopy()
		add(with, c.Resources.Requests)
		raise(peak, with)
	}
	raise(total, peak)
	if pod.Spec.Resources != nil {
		for name, q := range pod.Spec.Resources.Requests {
			total[name] = q.DeepCopy()
		}
	}
	add(total, pod.Spec.Overhead)
	return total
}

func add(to, list v1.ResourceList) {
	for name, q := range list {
		sum := to[name].DeepCopy()
		sum.Add(q)
		to[name] = sum
	}
}

func raise(to, list v1.ResourceList) {
	for name, q := range list {
		if have, ok := to[name]; !ok || have.Cmp(q) < 0 {
			to[name] = q.DeepCopy()
		}
	}
}

// takenPort returns the first host port of pod that another pod has, or "".
func takenPort(pod *v1.Pod, others []*v1.Pod) string {
	for _, want := range hostPorts(pod) {
		for _, other := range others {
			for _, have := range hostPorts(other) {
				if clash(want, have) {
					return fmt.Sprintf("%s %d", strings.ToLower(string(protocol(want))), want.HostPort)
				}
			}
		}
	}
	return ""
}

func hostPorts(pod *v1.Pod) []v1.ContainerPort {
	var ports []v1.ContainerPort
	for i := range pod.Spec.Containers {
		for _, p := range pod.Spec.Containers[i].Ports {
			if p.HostPort > 0 {
				ports = append(ports, p)
			}
		}
	}
	return ports
}

// clash tells whether two ports cannot both be bound: no address means every address.
func clash(a, b v1.ContainerPort) bool {
	every := func(ip string) bool { return ip == "" || ip == "0.0.0.0" || ip == "::" }
	return a.HostPort == b.HostPort && protocol(a) == protocol(b) &&
		(a.HostIP == b.HostIP || every(a.HostIP) || every(b.HostIP))
}

func protocol(p v1.ContainerPort) v1.Protocol {
	if p.Protocol == "" {
		return v1.ProtocolTCP
	}
	return p.Protocol
}
