package resize

import (
	"encoding/json"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition makes a condition of a resize. The time of transition is that of the newest reason, and the time of probing
// that of the newest change: a condition that says what it said, but for how much memory is in use, is the one before.
func Condition(kind v1.PodConditionType, before *v1.PodCondition, reason, message string, generation int64,
	now time.Time) *v1.PodCondition {
	at := metav1.Time{Time: now.Truncate(time.Second)} // as it travels
	c := &v1.PodCondition{
		Type:               kind,
		Status:             v1.ConditionTrue,
		Reason:             reason,
		Message:            message,
		ObservedGeneration: generation,
		LastProbeTime:      at,
		LastTransitionTime: at,
	}
	if before == nil || before.Reason != reason {
		return c
	}
	c.LastTransitionTime = before.LastTransitionTime
	if SameFailure(before.Message, message) && before.ObservedGeneration == generation {
		c.Message, c.LastProbeTime = before.Message, before.LastProbeTime
	}
	return c
}

// Find returns a copy of a condition; nil where it is not there.
func Find(list []v1.PodCondition, kind v1.PodConditionType) *v1.PodCondition {
	for i := range list {
		if list[i].Type == kind {
			return list[i].DeepCopy()
		}
	}
	return nil
}

// Message is the text of a resize's event: a sentence, and as JSON the amounts of the pod's containers, the generation
// of the pod that asked for them, and an error.
func Message(sentence string, pod *v1.Pod, generation int64, failure string) string {
	type amounts struct {
		Name      string                  `json:"name"`
		Resources v1.ResourceRequirements `json:"resources"`
	}
	list := func(containers []v1.Container) (out []amounts) {
		for i := range containers {
			out = append(out, amounts{containers[i].Name, containers[i].Resources})
		}
		return out
	}
	text, err := json.Marshal(struct {
		InitContainers []amounts `json:"initContainers,omitempty"`
		Containers     []amounts `json:"containers,omitempty"`
		Generation     int64     `json:"generation"`
		Error          string    `json:"error,omitempty"`
	}{list(pod.Spec.InitContainers), list(pod.Spec.Containers), generation, failure})
	if err != nil {
		return sentence
	}
	return sentence + ": " + string(text)
}
