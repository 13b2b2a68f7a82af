package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/keyqueue"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/podfacts"
)

// readyDelay lets a returning node's reports arrive before its earlier condition is restored.
const readyDelay = 500 * time.Millisecond

// readiness restores the condition Ready of pods when their node has returned. Kubernetes sets Ready to False for all
// pods of a node that it has not heard of for a while, and expects the node to set it again. An edge does not receive
// statuses, since they are its own, and for a pod that kept running nothing has changed. The other conditions came from
// the edge and show what Ready was, unless a newer status waits on the node: its containers may have become not ready
// while it was offline. So readiness waits for the inventory of the session, which says for which pods the API server
// has the newest status; for the others it waits until that arrives. KubeEdge's nodes send no inventory.
type readiness struct {
	Access
	keyqueue.Queue
	// current reports whether the API server has a pod's newest status.
	current func(node string, uid types.UID) bool
}

func newReadiness(a Access, current func(node string, uid types.UID) bool) *readiness {
	r := &readiness{Access: a, current: current}
	r.Queue = keyqueue.New("pod", r.sync, "Pod not made Ready again after its node returned; trying again")
	return r
}

// IsReady reports whether the node is Ready in Kubernetes.
func IsReady(node *v1.Node) bool {
	ready := readyCondition(node)
	return ready != nil && ready.Status == v1.ConditionTrue
}

// returned reports whether a node is connected here and Ready in Kubernetes: only then do pods stay Ready.
func (r *readiness) returned(node *v1.Node) bool {
	return node != nil && IsReady(node) && r.Sessions.ConnectedHere(node.Name)
}

func (r *readiness) podChanged(pod *v1.Pod) {
	if podfacts.ReadyAgain(pod) && r.returned(r.Caches.Node(pod.Spec.NodeName)) {
		r.Keys.AddAfter(pod.Namespace+"/"+pod.Name, readyDelay)
	}
}

func (r *readiness) nodeChanged(node *v1.Node) {
	if !r.returned(node) {
		return
	}
	for _, pod := range r.Caches.PodsOf(node.Name) {
		if podfacts.ReadyAgain(pod) {
			r.Keys.AddAfter(pod.Namespace+"/"+pod.Name, readyDelay)
		}
	}
}

// readyPatch returns the strategic merge patch of a pod's status. It applies only to the pod version it was made from,
// so that it does not undo newer reports of the edge.
func readyPatch(pod *v1.Pod, now time.Time) ([]byte, error) {
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion},
		"status": map[string]any{"conditions": []map[string]any{
			{"type": v1.PodReady, "status": v1.ConditionTrue, "lastTransitionTime": metav1.NewTime(now)},
		}},
	})
}

func (r *readiness) sync(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	pod := r.Caches.Pod(namespace, name)
	if pod == nil || !podfacts.ReadyAgain(pod) || !r.returned(r.Caches.Node(pod.Spec.NodeName)) ||
		!r.current(pod.Spec.NodeName, pod.UID) {
		return nil
	}
	patch, err := readyPatch(pod, time.Now())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(impersonate.WithNode(ctx, pod.Spec.NodeName), keyqueue.Timeout)
	defer cancel()
	_, err = r.AsNode.CoreV1().Pods(namespace).Patch(ctx, name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patch the status of pod %s: %w", key, err)
	}
	return nil
}
