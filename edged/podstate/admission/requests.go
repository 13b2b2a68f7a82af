package admission

import (
	v1 "k8s.io/api/core/v1"
)

// Requests is what a pod asks for as a whole: the sum of its containers and sidecars, or what an
// init container needs beside the sidecars started before it if that is more, plus overhead. A
// pod-level request takes the place of the sum. Source: "Resource sharing within containers" in the
// Kubernetes documentation of init containers and sidecars.
func Requests(pod *v1.Pod) v1.ResourceList {
	return Sum(pod, func(r *v1.ResourceRequirements) v1.ResourceList { return r.Requests })
}

// Limits returns what the containers of a pod are limited to together, added up the way Requests adds up requests.
func Limits(pod *v1.Pod) v1.ResourceList {
	return Sum(pod, func(r *v1.ResourceRequirements) v1.ResourceList { return r.Limits })
}

// Sum adds up a list of each container's resources, and of the pod's, the way Requests adds up requests. It does not
// change the lists.
func Sum(pod *v1.Pod, of func(*v1.ResourceRequirements) v1.ResourceList) v1.ResourceList {
	total := v1.ResourceList{}
	for i := range pod.Spec.Containers {
		add(total, of(&pod.Spec.Containers[i].Resources))
	}
	sidecars, peak := v1.ResourceList{}, v1.ResourceList{}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		own := of(&c.Resources)
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			add(sidecars, own)
			add(total, own)
			raise(peak, sidecars)
			continue
		}
		with := sidecars.DeepCopy()
		add(with, own)
		raise(peak, with)
	}
	raise(total, peak)
	if pod.Spec.Resources != nil {
		for name, q := range of(pod.Spec.Resources) {
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
