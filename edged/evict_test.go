package edged

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

// TestEvictedBefore: an agent that was restarted knows from a pod's condition that it is to end for want of resources.
func TestEvictedBefore(t *testing.T) {
	const message = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. "
	with := func(c v1.PodCondition) v1.PodStatus { return v1.PodStatus{Conditions: []v1.PodCondition{c}} }
	why := evicted(with(v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet, Message: message}))
	if why == nil || why.Reason != "Evicted" || why.Message != message || why.Condition == nil {
		t.Errorf("evicted = %+v, want reason Evicted, message %q and a condition", why, message)
	}
	for name, c := range map[string]v1.PodCondition{
		"of others":     {Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: "EvictionByEvictionAPI", Message: message},
		"over":          {Type: v1.DisruptionTarget, Status: v1.ConditionFalse, Reason: v1.PodReasonTerminationByKubelet, Message: message},
		"another cause": {Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet, Message: "Pod was terminated in response to imminent node shutdown."},
	} {
		if why := evicted(with(c)); why != nil {
			t.Errorf("%s: evicted = %+v, want nil", name, why)
		}
	}
}
