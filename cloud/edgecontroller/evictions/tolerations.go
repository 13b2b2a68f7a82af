package evictions

import (
	"encoding/json"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
)

// UnlimitedTaints returns the taints of a node whose link is down.
func UnlimitedTaints() [2]string { return [...]string{v1.TaintNodeNotReady, v1.TaintNodeUnreachable} }

// unlimited returns a pod's tolerations with unlimited ones for not-ready and unreachable nodes, and whether that
// changes them. It keeps a limited toleration of every taint (without a key): that covers more than these taints.
func unlimited(have []v1.Toleration) (want []v1.Toleration, changed bool) {
	want = slices.Clone(have)
	for _, key := range UnlimitedTaints() {
		taint := v1.Taint{Key: key, Effect: v1.TaintEffectNoExecute}
		covered := false
		for i := range want {
			t := &want[i]
			if !Tolerates(t, &taint) {
				continue
			}
			if t.TolerationSeconds == nil {
				covered = true
			} else if t.Key == key {
				t.TolerationSeconds, changed, covered = nil, true, true
			}
		}
		if !covered {
			want = append(want, v1.Toleration{
				Key: key, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute,
			})
			changed = true
		}
	}
	return want, changed
}

// Tolerates reports whether a toleration matches a taint that has no value.
func Tolerates(t *v1.Toleration, taint *v1.Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect {
		return false
	}
	switch t.Operator {
	case v1.TolerationOpExists:
		return t.Key == "" || t.Key == taint.Key
	case "", v1.TolerationOpEqual:
		return t.Key == taint.Key && t.Value == taint.Value
	}
	return false
}

// KeepsEvictions reports whether the annotations of a pod or Node leave tolerations alone.
func KeepsEvictions(annotations map[string]string) bool {
	return annotations[marks.KeepEvictions] == "true"
}

// Desired returns a bound pod's desired tolerations, and whether they differ.
func Desired(pod *v1.Pod, node *v1.Node) (want []v1.Toleration, changes bool) {
	if node == nil {
		return nil, false
	}
	_, mirror := pod.Annotations[v1.MirrorPodAnnotationKey]
	ended := pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
	if mirror || ended || pod.DeletionTimestamp != nil || KeepsEvictions(pod.Annotations) ||
		KeepsEvictions(node.Annotations) {
		return nil, false
	}
	return unlimited(pod.Spec.Tolerations)
}

// Patch returns the JSON merge patch that a bound pod needs; nil for none. It applies only to the pod version
// it was made from, so that no other change of the list is lost.
func Patch(pod *v1.Pod, node *v1.Node) ([]byte, error) {
	want, changes := Desired(pod, node)
	if !changes {
		return nil, nil
	}
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion},
		"spec":     map[string]any{"tolerations": want},
	})
}
