package nodes

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/evictions"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/keyqueue"
)

// elsewhereDelay leaves a node's pods to the cloudcore that the node is connected to, if there is one.
const elsewhereDelay = 3 * time.Second

// tolerations sets the tolerations of pods on edge nodes. evictionwait.go says when.
type tolerations struct {
	Access
	keyqueue.Queue
	// whole returns the whole of a pod that may be trimmed.
	whole func(ctx context.Context, pod *v1.Pod) (*v1.Pod, error)
	// patches counts the patches of pods by outcome.
	patches *prometheus.CounterVec
}

func newTolerations(
	a Access, whole func(context.Context, *v1.Pod) (*v1.Pod, error), patches *prometheus.CounterVec,
) *tolerations {
	t := &tolerations{Access: a, whole: whole, patches: patches}
	t.Queue = keyqueue.New("pod", t.sync, "Tolerations of a pod not changed; it may be evicted while its node "+
		"cannot be reached; it is tried again")
	return t
}

// podChanged schedules a pod whose tolerations must change. The earliest time for a pod counts.
func (t *tolerations) podChanged(pod *v1.Pod) {
	node := t.Caches.Node(pod.Spec.NodeName)
	if _, changes := evictions.Desired(pod, node); !changes {
		return
	}
	var wait time.Duration
	if reachable(node) {
		wait = evictions.PatchDelay(pod, time.Now())
	}
	if !t.Sessions.ConnectedHere(node.Name) {
		wait += elsewhereDelay
	}
	t.Keys.AddAfter(keyqueue.PodKey(pod), wait)
}

func (t *tolerations) nodeChanged(node string) {
	for _, pod := range t.Caches.PodsOf(node) {
		t.podChanged(pod)
	}
}

func (t *tolerations) sync(ctx context.Context, key string) error {
	namespace, name, uid, err := keyqueue.SplitPodKey(key)
	if err != nil {
		return err
	}
	pod := t.Caches.Pod(namespace, name)
	if pod == nil || pod.UID != uid {
		return nil
	}
	node := t.Caches.Node(pod.Spec.NodeName)
	if node == nil {
		return nil
	}
	if _, changes := evictions.Desired(pod, node); changes {
		if pod, err = t.whole(ctx, pod); err != nil {
			return err
		}
	}
	patch, err := evictions.Patch(pod, node)
	if err != nil || patch == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, keyqueue.Timeout)
	defer cancel()
	_, err = t.Own.CoreV1().Pods(namespace).Patch(ctx, name, types.MergePatchType, patch,
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

// reachable reports whether a node is ready and its pods' tolerations are not running out.
func reachable(node *v1.Node) bool {
	for i := range node.Spec.Taints {
		for _, key := range evictions.UnlimitedTaints() {
			if node.Spec.Taints[i].Key == key {
				return false
			}
		}
	}
	return IsReady(node)
}

func outcome(err error) string {
	if err != nil {
		return "error"
	}
	return "ok"
}
