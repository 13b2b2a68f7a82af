// Package admission decides whether a pod may run on this node beside its other pods, and which of those are preempted
// for a critical one. It is pure; reasons and messages are the kubelet's.
//
// # Where it differs from a kubelet
//
// A kubelet rejects by the labels and taints of its Node object, which it reads from the API server. This agent has
// no such object while it is offline, and what it may have is old. So a pod that a scheduler has bound is
// rejected only for what cannot have changed: the labels of the machine itself (its name, system, architecture).
// Of other labels the verdict is Doubt: the caller asks the cloud, and runs the pod if that does not answer. A static
// pod, which no scheduler has seen, is judged by the labels of the configuration alone.
package admission

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// Node holds the resources that pods share, and what is known about the node.
type Node struct {
	Name string
	// Allocatable holds cpu, memory, pods and so on; a resource of those that is missing is not counted.
	Allocatable v1.ResourceList
	// Devices reports whether plugins give out the devices of a resource: whether there are enough is known when
	// they are chosen. nil knows none.
	Devices func(name v1.ResourceName) bool
	// Labels are those that this agent gives the node. Of the cloud's, all that the Node has.
	Labels map[string]string
	// Whole: Labels and Taints are those of the Node as it is now, so that what is not among them is not there.
	Whole  bool
	Taints []v1.Taint
	// Checks are further reasons to reject a pod, such as the sysctls that it sets.
	Checks []func(pod *v1.Pod) *observed.Reason
}

// Verdict is what becomes of a pod.
type Verdict struct {
	// Rejected says why the pod may not run; nil that it may.
	Rejected *observed.Reason
	// Victims have to end before the pod starts, and Lack is the resource for which they do.
	Victims []*v1.Pod
	Lack    v1.ResourceName
	// Doubt: the labels or taints that the cloud may have given the Node would decide.
	Doubt bool
}

// failure is one reason against a pod; short is how much of a resource is missing, 0 when it is something else.
type failure struct {
	observed.Reason
	resource v1.ResourceName
	short    int64
}

// Admit judges a pod. Others are the pods that were admitted before it and have not ended.
func Admit(node Node, pod *v1.Pod, others []*v1.Pod) Verdict {
	if os := pod.Labels[v1.LabelOSStable]; os != "" && os != string(v1.Linux) {
		return rejected("PodOSSelectorNodeLabelDoesNotMatch",
			"Failed to admit pod as the `kubernetes.io/os` label doesn't match node label")
	}
	if os := pod.Spec.OS; os != nil && os.Name != v1.Linux {
		return rejected("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")
	}
	for _, check := range node.Checks {
		if why := check(pod); why != nil {
			return Verdict{Rejected: why}
		}
	}
	failures := fitsResources(node, pod, others)
	doubt := false
	switch selected := matches(node, pod); selected {
	case no:
		failures = append(failures, predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector"))
	case unknown:
		doubt = true
	}
	if pod.Spec.NodeName != "" && node.Name != "" && pod.Spec.NodeName != node.Name {
		failures = append(failures, predicate("NodeName", "node(s) didn't match the requested node name"))
	}
	if portTaken(pod, others) {
		failures = append(failures,
			predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports"))
	}
	if node.Whole && !Static(pod) && !tolerates(pod, node.Taints) {
		failures = append(failures, predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate"))
	}
	if len(failures) == 0 {
		return Verdict{Doubt: doubt}
	}
	if !Critical(pod) {
		return Verdict{Rejected: &failures[0].Reason}
	}
	return preempt(pod, others, failures, doubt)
}

func rejected(reason, message string) Verdict {
	return Verdict{Rejected: &observed.Reason{Reason: reason, Message: message}}
}

func predicate(name, text string) failure {
	return failure{Reason: observed.Reason{Reason: name, Message: "Predicate " + name + " failed: " + text}}
}

// fitsResources finds what a pod asks for and the node has not left.
func fitsResources(node Node, pod *v1.Pod, others []*v1.Pod) []failure {
	var failures []failure
	add := func(name v1.ResourceName, want, used, capacity int64) {
		if used+want > capacity {
			failures = append(failures, insufficient(name, want, used, capacity))
		}
	}
	if limit, ok := node.Allocatable[v1.ResourcePods]; ok {
		add(v1.ResourcePods, 1, int64(len(others)), limit.Value())
	}
	wants := Requests(pod)
	for _, name := range counted(wants) {
		want := amount(name, wants[name])
		capacity, known := node.Allocatable[name]
		if want <= 0 || !known && !missing(name, pod) || node.Devices != nil && node.Devices(name) {
			continue
		}
		var used int64
		for _, other := range others {
			used += amount(name, Requests(other)[name])
		}
		add(name, want, used, amount(name, capacity))
		if !known {
			failures[len(failures)-1].short = 0 // nobody can make room for it
		}
	}
	return failures
}

// counted are the names of resources in the order in which they are looked at.
func counted(wants v1.ResourceList) []v1.ResourceName {
	first := []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage}
	var rest []v1.ResourceName
	for name := range wants {
		if !slices.Contains(first, name) && name != v1.ResourcePods {
			rest = append(rest, name)
		}
	}
	slices.Sort(rest)
	return append(first, rest...)
}

// missing reports whether a resource that the node does not know is one that it lacks. Of cpu, memory and storage a
// node that does not know how much it has does not count any. An extended resource may be the cluster's, where
// a scheduler has bound the pod; a static pod has asked this node.
func missing(name v1.ResourceName, pod *v1.Pod) bool {
	switch name {
	case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage:
		return false
	}
	if strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
		return true
	}
	return Static(pod)
}

func insufficient(name v1.ResourceName, want, used, capacity int64) failure {
	return failure{
		observed.Reason{
			Reason: "OutOf" + string(name),
			Message: fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name,
				want, used, capacity),
		}, name, want - (capacity - used),
	}
}

// amount is a quantity in the unit that is counted: thousandths of a core for cpu, else units.
func amount(name v1.ResourceName, q resource.Quantity) int64 {
	if name == v1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}
