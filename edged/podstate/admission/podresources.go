package admission

import v1 "k8s.io/api/core/v1"

// StatusResources are the resources of a pod as a whole, as its status has them: what its containers ask for and are
// limited to in sum, or the pod-level resources of its spec in place of the sum. Both lists are never nil.
func StatusResources(pod *v1.Pod) v1.ResourceRequirements {
	var out v1.ResourceRequirements
	if r := pod.Spec.Resources; r != nil {
		out = *r.DeepCopy()
	}
	limits := Limits(WithoutOverhead(pod))
	for name, more := range pod.Spec.Overhead { // which limits nothing by itself
		if q, ok := limits[name]; ok && !q.IsZero() {
			q.Add(more)
			limits[name] = q
		}
	}
	out.Requests, out.Limits = Requests(pod), limits
	return out
}

// WithoutOverhead returns a pod without the overhead of its runtime class: the same one if it has none, else a copy.
func WithoutOverhead(pod *v1.Pod) *v1.Pod {
	if pod.Spec.Overhead == nil {
		return pod
	}
	bare := pod.DeepCopy()
	bare.Spec.Overhead = nil
	return bare
}
