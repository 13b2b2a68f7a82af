package edgecontroller

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/keyqueue"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
)

// elsewhereDelay leaves a node's pods to the cloudcore that the node is connected to, if there is one.
const elsewhereDelay = 3 * time.Second

// unlimitedTaints are the taints of a node whose link is down.
var unlimitedTaints = []string{v1.TaintNodeNotReady, v1.TaintNodeUnreachable}

// unlimited returns a pod's tolerations with unlimited ones for not-ready and unreachable nodes, and whether that
// changes them. It keeps a limited toleration of every taint (without a key): that covers more than these taints.
func unlimited(have []v1.Toleration) (want []v1.Toleration, changed bool) {
	want = slices.Clone(have)
	for _, key := range unlimitedTaints {
		taint := v1.Taint{Key: key, Effect: v1.TaintEffectNoExecute}
		covered := false
		for i := range want {
			t := &want[i]
			if !tolerates(t, &taint) {
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

// tolerates reports whether a toleration matches a taint that has no value.
func tolerates(t *v1.Toleration, taint *v1.Taint) bool {
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

func keepsEvictions(annotations map[string]string) bool {
	return annotations[marks.KeepEvictions] == "true"
}

// desiredTolerations returns a bound pod's desired tolerations, and whether they differ.
func desiredTolerations(pod *v1.Pod, node *v1.Node) (want []v1.Toleration, changes bool) {
	if node == nil {
		return nil, false
	}
	_, mirror := pod.Annotations[v1.MirrorPodAnnotationKey]
	ended := pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
	if mirror || ended || pod.DeletionTimestamp != nil || keepsEvictions(pod.Annotations) ||
		keepsEvictions(node.Annotations) {
		return nil, false
	}
	return unlimited(pod.Spec.Tolerations)
}

// tolerationPatch returns the JSON merge patch that a bound pod needs; nil for none. It applies only to the pod version
// it was made from, so that no other change of the list is lost.
func tolerationPatch(pod *v1.Pod, node *v1.Node) ([]byte, error) {
	want, changes := desiredTolerations(pod, node)
	if !changes {
		return nil, nil
	}
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion},
		"spec":     map[string]any{"tolerations": want},
	})
}

// tolerations sets the tolerations of pods on edge nodes. evictionwait.go says when.
type tolerations struct {
	access
	keyqueue.Queue
	// whole returns the whole of a pod that may be trimmed.
	whole func(ctx context.Context, pod *v1.Pod) (*v1.Pod, error)
	// patches counts the patches of pods by outcome.
	patches *prometheus.CounterVec
}

func newTolerations(
	a access, whole func(context.Context, *v1.Pod) (*v1.Pod, error), patches *prometheus.CounterVec,
) *tolerations {
	t := &tolerations{access: a, whole: whole, patches: patches}
	t.Queue = keyqueue.New("pod", t.sync, "Tolerations of a pod not changed; it may be evicted while its node "+
		"cannot be reached; it is tried again")
	return t
}

// podChanged schedules a pod whose tolerations must change. The earliest time for a pod counts.
func (t *tolerations) podChanged(pod *v1.Pod) {
	node := t.caches.Node(pod.Spec.NodeName)
	if _, changes := desiredTolerations(pod, node); !changes {
		return
	}
	var wait time.Duration
	if reachable(node) {
		wait = patchDelay(pod, time.Now())
	}
	if !t.sessions.ConnectedHere(node.Name) {
		wait += elsewhereDelay
	}
	t.Keys.AddAfter(keyqueue.PodKey(pod), wait)
}

func (t *tolerations) nodeChanged(node string) {
	for _, pod := range t.caches.PodsOf(node) {
		t.podChanged(pod)
	}
}

func (t *tolerations) sync(ctx context.Context, key string) error {
	namespace, name, uid, err := keyqueue.SplitPodKey(key)
	if err != nil {
		return err
	}
	pod := t.caches.Pod(namespace, name)
	if pod == nil || pod.UID != uid {
		return nil
	}
	node := t.caches.Node(pod.Spec.NodeName)
	if node == nil {
		return nil
	}
	if _, changes := desiredTolerations(pod, node); changes {
		if pod, err = t.whole(ctx, pod); err != nil {
			return err
		}
	}
	patch, err := tolerationPatch(pod, node)
	if err != nil || patch == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, keyqueue.Timeout)
	defer cancel()
	_, err = t.own.CoreV1().Pods(namespace).Patch(ctx, name, types.MergePatchType, patch,
		metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	t.patches.WithLabelValues(outcome(err)).Inc()
	if err != nil {
		return fmt.Errorf("patch pod %s/%s: %w", namespace, name, err)
	}
	return nil
}
