package kube_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
)

const pinned = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  nodeName: %[1]s
  containers: [{name: pump, image: example.com/pump:1}]
`

// With short times, the real controller manager evicts the pod of a silent node soon, and leaves the pod of
// the one that renews its lease.
func TestShortTimesEvictFast(t *testing.T) {
	const grace = 20 * time.Second
	steps := &timing{t: t, last: time.Now()}
	c := kube.Start(t, kube.Options{
		ControllerManager:      true,
		NodeMonitorGracePeriod: grace, NodeMonitorPeriod: time.Second, TolerationTime: 2 * time.Second,
	})
	kubectl := kubectlOf(t, c)
	for _, name := range []string{"edge-1", "edge-2"} {
		apply(t, c, strings.ReplaceAll(node, "edge-1", name))
		kubectl("patch", "node", name, "--subresource=status", "-p", fmt.Sprintf(nodeStatus, time.Now().UTC().Format(time.RFC3339)))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var gap time.Duration
	renewed := make(chan error, 1)
	go func() {
		var err error
		gap, err = renewLease(ctx, c.Client(), "edge-2")
		renewed <- err
	}()
	apply(t, c, fmt.Sprintf(pinned, "edge-1")+"---"+fmt.Sprintf(pinned, "edge-2"))
	steps.step("a cluster, two nodes with a pod each")
	testenv.Poll(t, 2*time.Minute, func() error {
		pod, err := podOf(t, c, "edge-1")
		if err == nil && pod.DeletionTimestamp == nil {
			err = fmt.Errorf("pod edge-1 is not evicted; its conditions are %v", pod.Status.Conditions)
		}
		return err
	})
	steps.step("the silent node's pod evicted")
	pod, err := podOf(t, c, "edge-2")
	cancel()
	if err := <-renewed; !errors.Is(err, context.Canceled) {
		t.Errorf("renew the lease of edge-2: %v", err)
	}
	if gap > grace/2 {
		t.Logf("edge-2 was silent for %v, too: it may have been evicted", gap)
	} else if err != nil || pod.DeletionTimestamp != nil {
		t.Errorf("the pod of the node that renews its lease: deleted %v, %v; want that it stays", pod.DeletionTimestamp, err)
	}
}

func podOf(t *testing.T, c *kube.Cluster, name string) (*v1.Pod, error) {
	return c.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), name, metav1.GetOptions{})
}

// renewLease does every second what a node does, until the context ends. It returns the longest time for which it did not.
func renewLease(ctx context.Context, client kubernetes.Interface, name string) (gap time.Duration, err error) {
	leases := client.CoordinationV1().Leases(v1.NamespaceNodeLease)
	lease, err := leases.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: new(int32(40)), RenewTime: &metav1.MicroTime{Time: time.Now()}},
	}, metav1.CreateOptions{})
	last := time.Now()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for err == nil {
		select {
		case <-ctx.Done():
			return max(gap, time.Since(last)), ctx.Err()
		case <-ticker.C:
			lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
			lease, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
			gap, last = max(gap, time.Since(last)), time.Now()
		}
	}
	return gap, err
}
