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

// With short times, the real controller manager evicts the pod of a silent node within seconds, and
// leaves the pod of the one that renews its lease.
func TestShortTimesEvictFast(t *testing.T) {
	steps := &timing{t: t, last: time.Now()}
	c := kube.Start(t, kube.Options{
		ControllerManager:      true,
		NodeMonitorGracePeriod: 4 * time.Second, NodeMonitorPeriod: time.Second, TolerationTime: 2 * time.Second,
	})
	kubectl := kubectlOf(t, c)
	for _, name := range []string{"edge-1", "edge-2"} {
		apply(t, c, strings.ReplaceAll(node, "edge-1", name))
		kubectl("patch", "node", name, "--subresource=status", "-p", fmt.Sprintf(nodeStatus, time.Now().UTC().Format(time.RFC3339)))
	}
	renewed := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { renewed <- renewLease(ctx, c.Client(), "edge-2") }()
	defer func() {
		cancel()
		if err := <-renewed; !errors.Is(err, context.Canceled) {
			t.Errorf("renew the lease of edge-2: %v", err)
		}
	}()
	apply(t, c, fmt.Sprintf(pinned, "edge-1")+"---"+fmt.Sprintf(pinned, "edge-2"))
	steps.step("a cluster, two nodes with a pod each")
	testenv.Poll(t, time.Minute, func() error {
		pod, err := podOf(t, c, "edge-1")
		if err == nil && pod.DeletionTimestamp == nil {
			err = fmt.Errorf("pod edge-1 is not evicted; its conditions are %v", pod.Status.Conditions)
		}
		return err
	})
	steps.step("the silent node's pod evicted")
	if pod, err := podOf(t, c, "edge-2"); err != nil || pod.DeletionTimestamp != nil {
		t.Errorf("the pod of the node that renews its lease: deleted %v, %v; want that it stays", pod.DeletionTimestamp, err)
	}
}

func podOf(t *testing.T, c *kube.Cluster, name string) (*v1.Pod, error) {
	return c.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), name, metav1.GetOptions{})
}

// renewLease does every second what a node does, until the context ends.
func renewLease(ctx context.Context, client kubernetes.Interface, name string) error {
	leases := client.CoordinationV1().Leases(v1.NamespaceNodeLease)
	lease, err := leases.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: new(int32(40)), RenewTime: &metav1.MicroTime{Time: time.Now()}},
	}, metav1.CreateOptions{})
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for err == nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case now := <-ticker.C:
			lease.Spec.RenewTime = &metav1.MicroTime{Time: now}
			lease, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		}
	}
	return err
}
