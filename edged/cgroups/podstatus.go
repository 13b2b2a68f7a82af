package cgroups

import (
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/admission"
)

// minMilliCPU is the least cpu limit that a cgroup has, in thousandths.
const minMilliCPU = 10

// StatusResources are the resources of a pod as a whole, as its status has them: before it runs what it asks for, then
// what its cgroup enforces, beside the pod-level resources of its spec. A pod's cgroup limits cpu or memory where every
// container has a limit. Both lists of the result are never nil.
func StatusResources(pod *v1.Pod, runs bool) v1.ResourceRequirements {
	var out v1.ResourceRequirements
	if r := pod.Spec.Resources; r != nil {
		out = *r.DeepCopy()
	}
	requests := admission.Requests(pod)
	without := *pod
	without.Spec.Overhead = nil
	limits, cpu, memory := podLimits(&without)
	for name, more := range pod.Spec.Overhead { // which limits nothing by itself
		if q, ok := limits[name]; ok && !q.IsZero() {
			q.Add(more)
			limits[name] = q
		}
	}
	if !runs {
		out.Requests, out.Limits = requests, limits
		return out
	}
	if out.Requests == nil {
		out.Requests = v1.ResourceList{}
	}
	if out.Limits == nil {
		out.Limits = v1.ResourceList{}
	}
	set := func(list v1.ResourceList, name v1.ResourceName, from v1.ResourceList, enforced bool) {
		if q, ok := from[name]; ok && enforced {
			list[name] = q
		}
	}
	set(out.Requests, v1.ResourceCPU, requests, requests.Cpu().MilliValue() > minShares)
	set(out.Requests, v1.ResourceMemory, requests, true)
	set(out.Limits, v1.ResourceCPU, limits, cpu && limits.Cpu().MilliValue() > minMilliCPU)
	set(out.Limits, v1.ResourceMemory, limits, memory)
	return out
}
