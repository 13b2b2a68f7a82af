package admission

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// criticalPriority is the lowest priority of a critical pod: that of the class system-cluster-critical.
const criticalPriority = 2000000000

// What is said of a pod that ended for a critical one.
const (
	ReasonPreempting     = "Preempting"
	MessagePreempted     = "Preempted in order to admit critical pod"
	DisruptionMessage    = "Pod was preempted by Kubelet to accommodate a critical pod."
	annotationSource     = "kubernetes.io/config.source"
	sourceAPI            = "api"
	unexpected           = "UnexpectedAdmissionError"
	preemptionImpossible = "Unexpected error while attempting to recover from admission failure: preemption: error " +
		"finding a set of pods to preempt: no set of running pods found to reclaim resources: %s"
)

// Static reports whether a pod comes from this node rather than from the API server.
func Static(pod *v1.Pod) bool {
	source, ok := pod.Annotations[annotationSource]
	return ok && source != sourceAPI
}

// Critical reports whether other pods make room for a pod: one of this node, the picture of one, or one of the
// priority of the system's classes.
func Critical(pod *v1.Pod) bool {
	_, mirror := pod.Annotations[v1.MirrorPodAnnotationKey]
	return mirror || Static(pod) || pod.Spec.Priority != nil && *pod.Spec.Priority >= criticalPriority
}

// preemptable reports whether a pod makes room for another.
func preemptable(pod, victim *v1.Pod) bool {
	if Critical(pod) && !Critical(victim) {
		return true
	}
	return pod.Spec.Priority != nil && victim.Spec.Priority != nil && *pod.Spec.Priority > *victim.Spec.Priority
}

// preempt finds the pods that make room for a critical one. It helps only against a lack of resources.
func preempt(pod *v1.Pod, others []*v1.Pod, failures []failure, doubt bool) Verdict {
	lack := map[v1.ResourceName]int64{}
	for _, f := range failures {
		if f.short <= 0 {
			return Verdict{Rejected: &f.Reason}
		}
		lack[f.resource] = f.short
	}
	victims, missing := Victims(pod, others, lack)
	if len(missing) > 0 && Static(pod) {
		return Verdict{Rejected: &failures[0].Reason} // the author of the manifest learns what is short
	}
	if len(missing) > 0 {
		return Verdict{
			Rejected: &observed.Reason{
				Reason: unexpected, Message: fmt.Sprintf(preemptionImpossible, describe(missing)),
			},
		}
	}
	return Verdict{Victims: victims, Lack: failures[0].resource, Doubt: doubt}
}

// Victims chooses the pods that have to end so that there is as much more of each resource as is lacking. BestEffort
// pods go rather than Burstable ones, and those rather than Guaranteed ones; of a class as few as do, and among equals
// the smaller. What no preemption can free is returned as missing.
func Victims(
	pod *v1.Pod, others []*v1.Pod, lack map[v1.ResourceName]int64,
) (victims []*v1.Pod, missing map[v1.ResourceName]int64) {
	classes := map[v1.PodQOSClass][]*v1.Pod{}
	var all []*v1.Pod
	for _, o := range others {
		if preemptable(pod, o) {
			classes[QOS(o)] = append(classes[QOS(o)], o)
			all = append(all, o)
		}
	}
	if missing = after(lack, all...); len(missing) > 0 {
		return nil, missing
	}
	// What the lower classes can give as a whole, the higher ones need not.
	bestEffort, burstable := classes[v1.PodQOSBestEffort], classes[v1.PodQOSBurstable]
	guaranteed := fewest(classes[v1.PodQOSGuaranteed], after(lack, slices.Concat(bestEffort, burstable)...))
	burstable = fewest(burstable, after(lack, slices.Concat(bestEffort, guaranteed)...))
	bestEffort = fewest(bestEffort, after(lack, slices.Concat(burstable, guaranteed)...))
	return slices.Concat(bestEffort, burstable, guaranteed), nil
}

// after is what is still lacking when some pods have ended.
func after(lack map[v1.ResourceName]int64, pods ...*v1.Pod) map[v1.ResourceName]int64 {
	left := map[v1.ResourceName]int64{}
	for name, n := range lack {
		for _, p := range pods {
			n -= gives(p, name)
		}
		if n > 0 {
			left[name] = n
		}
	}
	return left
}

// gives is what a pod that ends leaves of a resource.
func gives(pod *v1.Pod, name v1.ResourceName) int64 {
	if name == v1.ResourcePods {
		return 1
	}
	return amount(name, Requests(pod)[name])
}

// fewest chooses pods, each time the one after which the least is lacking, and of equals the smaller one.
func fewest(pods []*v1.Pod, lack map[v1.ResourceName]int64) []*v1.Pod {
	left, chosen := slices.Clone(pods), []*v1.Pod(nil)
	for len(lack) > 0 && len(left) > 0 {
		best := slices.MinFunc(left, func(a, b *v1.Pod) int {
			return cmp.Or(cmp.Compare(distance(a, lack), distance(b, lack)),
				cmp.Compare(gives(a, v1.ResourceMemory), gives(b, v1.ResourceMemory)),
				cmp.Compare(gives(a, v1.ResourceCPU), gives(b, v1.ResourceCPU)))
		})
		left = slices.DeleteFunc(left, func(p *v1.Pod) bool { return p == best })
		chosen, lack = append(chosen, best), after(lack, best)
	}
	return chosen
}

// distance is how much is lacking after a pod has ended, each resource in parts of what was lacking.
func distance(pod *v1.Pod, lack map[v1.ResourceName]int64) float64 {
	sum := 0.0
	for name, n := range lack {
		if left := float64(n - gives(pod, name)); left > 0 {
			sum += left / float64(n) * left / float64(n)
		}
	}
	return sum
}

func describe(lack map[v1.ResourceName]int64) string {
	var parts []string
	for name, n := range lack {
		parts = append(parts, fmt.Sprintf("(res: %s, q: %d)", name, n))
	}
	slices.Sort(parts)
	return "[" + strings.Join(parts, ", ") + "]"
}
