package kube_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

const pinned = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  nodeName: %[1]s
  containers: [{name: pump, image: example.com/pump:1}]
`

// With short times, the real controller manager evicts the pod of a silent node soon. It keeps the node that renews
// its lease free of the taint that evicts, and leaves that node's pod.
func TestShortTimesEvictFast(t *testing.T) {
	t.Parallel()
	steps := &timing{t: t, last: time.Now()}
	c := kube.Start(t, kube.Options{
		ControllerManager:      true,
		NodeMonitorGracePeriod: 5 * time.Second, NodeMonitorPeriod: time.Second, TolerationTime: 2 * time.Second,
	})
	kubectl := kubectlOf(t, c)
	const silent, renewing = "edge-1", "edge-2"
	// The silent node is the younger one: who ignores leases taints the other one first.
	for _, name := range []string{renewing, silent} {
		apply(t, c, strings.ReplaceAll(node, "edge-1", name))
		kubectl("patch", "node", name, "--subresource=status", "-p",
			fmt.Sprintf(nodeStatus, time.Now().UTC().Format(time.RFC3339)))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	renewed := make(chan error, 1)
	go func() { renewed <- renewLease(ctx, c.Client(), renewing) }()
	apply(t, c, fmt.Sprintf(pinned, renewing)+"---"+fmt.Sprintf(pinned, silent))
	steps.step("a cluster, two nodes with a pod each")
	wait.Until(t, "the silent node's pod to be evicted", func() error {
		pod, err := c.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), silent, metav1.GetOptions{})
		if err == nil && pod.DeletionTimestamp == nil {
			err = fmt.Errorf("its conditions are %v, want it deleted", pod.Status.Conditions)
		}
		return err
	})
	steps.step("the silent node's pod evicted")
	// Renewals alone do not remove the taint: without it now, the node never had it, and its pod had to stay.
	n, err := c.Client().CoreV1().Nodes().Get(t.Context(), renewing, metav1.GetOptions{})
	unreachable := func(taint v1.Taint) bool { return taint.Key == v1.TaintNodeUnreachable }
	if err != nil || slices.ContainsFunc(n.Spec.Taints, unreachable) {
		t.Errorf("taints of the renewing node = %+v, %v, want none of %s", n.Spec.Taints, err, v1.TaintNodeUnreachable)
	}
	pod, err := c.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), renewing, metav1.GetOptions{})
	if err != nil || pod.DeletionTimestamp != nil {
		t.Errorf("the renewing node's pod: deleted at %v, %v, want it kept", pod.DeletionTimestamp, err)
	}
	cancel()
	if err := <-renewed; !errors.Is(err, context.Canceled) {
		t.Errorf("renewing the lease of %s ended with %v, want %v", renewing, err, context.Canceled)
	}
}

// renewLease renews a lease every second, as a node does, until the context ends.
func renewLease(ctx context.Context, client kubernetes.Interface, name string) error {
	leases := client.CoordinationV1().Leases(v1.NamespaceNodeLease)
	lease, err := leases.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       &name,
			LeaseDurationSeconds: new(int32(40)),
			RenewTime:            &metav1.MicroTime{Time: time.Now()},
		},
	}, metav1.CreateOptions{})
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for err == nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
			lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
			lease, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		}
	}
	if ctx.Err() != nil { // a call was cut off
		return ctx.Err()
	}
	return err
}
