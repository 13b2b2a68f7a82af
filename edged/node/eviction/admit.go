package eviction

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/admission"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// Reason is that of pods that a node under pressure ends or does not take.
const Reason = "Evicted"

// Admit says why a node under some pressure conditions rejects a pod; nil admits it. Under memory pressure that is for
// BestEffort pods that do not tolerate it, under any other for all but critical ones.
func Admit(conditions []v1.NodeConditionType, pod *v1.Pod) *observed.Reason {
	if len(conditions) == 0 || admission.Critical(pod) {
		return nil
	}
	if slices.Equal(conditions, []v1.NodeConditionType{v1.NodeMemoryPressure}) {
		tolerates := slices.ContainsFunc(pod.Spec.Tolerations, func(t v1.Toleration) bool {
			return toleratesMemoryPressure(&t)
		})
		if admission.QOS(pod) != v1.PodQOSBestEffort || tolerates {
			return nil
		}
	}
	return &observed.Reason{Reason: Reason, Message: fmt.Sprintf("The node had condition: %v. ", conditions)}
}

// toleratesMemoryPressure reports whether a toleration is for the taint that a node under memory pressure has.
func toleratesMemoryPressure(t *v1.Toleration) bool {
	if t.Effect != "" && t.Effect != v1.TaintEffectNoSchedule {
		return false
	}
	if t.Operator == v1.TolerationOpExists {
		return t.Key == "" || t.Key == v1.TaintNodeMemoryPressure
	}
	return t.Key == v1.TaintNodeMemoryPressure && t.Value == "" &&
		(t.Operator == "" || t.Operator == v1.TolerationOpEqual)
}
