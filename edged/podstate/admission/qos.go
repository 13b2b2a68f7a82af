package admission

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// QOS returns the quality-of-service class of a pod: the one in its status, which never changes, else the one that
// its resources give it. The status of a pod from the API always has one.
func QOS(pod *v1.Pod) v1.PodQOSClass {
	switch class := pod.Status.QOSClass; class {
	case v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort:
		return class
	}
	return computeQOS(pod)
}

// computeQOS returns Guaranteed when every container limits cpu and memory and requests as much, BestEffort when none
// asks for either, else Burstable. Pod-level resources, if there are any, take the place of the containers'. A request
// that is absent is the limit, by the API's defaults; one of "0" is none, as for the API server: such a pod is not
// Guaranteed.
func computeQOS(pod *v1.Pod) v1.PodQOSClass {
	var lists []v1.ResourceRequirements
	if r := pod.Spec.Resources; r != nil && (hasPodLevel(r.Requests) || hasPodLevel(r.Limits)) {
		lists = append(lists, *r)
	} else {
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			lists = append(lists, c.Resources)
		}
	}
	any, all := false, len(lists) > 0
	for _, r := range lists {
		for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
			limit := r.Limits[name]
			request, asked := r.Requests[name]
			any = any || limit.Sign() > 0 || request.Sign() > 0
			all = all && limit.Sign() > 0 && (!asked || limit.Cmp(request) == 0)
		}
	}
	switch {
	case !any:
		return v1.PodQOSBestEffort
	case all:
		return v1.PodQOSGuaranteed
	}
	return v1.PodQOSBurstable
}

// hasPodLevel reports whether a list has a resource that a pod may have as a whole.
func hasPodLevel(list v1.ResourceList) bool {
	for name := range list {
		if name == v1.ResourceCPU || name == v1.ResourceMemory ||
			strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
			return true
		}
	}
	return false
}
