package kube

import (
	"context"
	"encoding/json"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ReadyPods makes each pod of a namespace ready until the test ends, in place of nodes that would run them.
func (c *Cluster) ReadyPods(t testing.TB, namespace string) {
	t.Helper()
	now := metav1.Now()
	status, err := json.Marshal(map[string]any{"status": v1.PodStatus{
		Phase: v1.PodRunning,
		Conditions: []v1.PodCondition{
			{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: now},
			{Type: v1.ContainersReady, Status: v1.ConditionTrue, LastTransitionTime: now},
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			c.readyPods(ctx, namespace, status)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

// readyPods does so for as long as one watch lasts.
func (c *Cluster) readyPods(ctx context.Context, namespace string, status []byte) {
	pods := c.client.CoreV1().Pods(namespace)
	w, err := pods.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return // the cluster starts, or ends
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		p, ok := event.Object.(*v1.Pod)
		if ok && p.Status.Phase == v1.PodPending && p.DeletionTimestamp == nil {
			// a pod that is gone meanwhile needs no status
			_, _ = pods.Patch(ctx, p.Name, types.StrategicMergePatchType, status, metav1.PatchOptions{}, "status")
		}
	}
}
