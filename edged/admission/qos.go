package admission

import v1 "k8s.io/api/core/v1"

// QOS returns the quality-of-service class of a pod: Guaranteed when every container limits cpu and memory
// and requests as much, BestEffort when none asks for either, else Burstable. Pod-level resources
// take the place of the containers'.
func QOS(pod *v1.Pod) v1.PodQOSClass {
	lists := []v1.ResourceRequirements{}
	if r := pod.Spec.Resources; r != nil && (len(r.Requests) > 0 || len(r.Limits) > 0) {
		lists = append(lists, *r)
	} else {
		for i := range pod.Spec.InitContainers {
			lists = append(lists, pod.Spec.InitContainers[i].Resources)
		}
		for i := range pod.Spec.Containers {
			lists = append(lists, pod.Spec.Containers[i].Resources)
		}
	}
	any, all := false, true
	for _, r := range lists {
		for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
			limit, request := r.Limits[name], r.Requests[name]
			any = any || limit.Sign() > 0 || request.Sign() > 0
			if limit.Sign() <= 0 || (request.Sign() > 0 && request.Cmp(limit) != 0) {
				all = false
			}
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
