package cloud

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestEvictions: when nodes fall silent, the real controller manager evicts the pods of a server and those that want it
// so, and leaves all others on edges alone. Two cloudcores serve the cluster; each edge is connected to one of them, or
// to none.
func TestEvictions(t *testing.T) {
	t.Parallel()
	c := start(t, kube.Options{
		ControllerManager:      true,
		NodeMonitorGracePeriod: 20 * time.Second,
		NodeMonitorPeriod:      500 * time.Millisecond,
		TolerationTime:         2 * time.Second,
		ControllerManagerFlags: []string{"--node-eviction-rate=10"},
	}, "base/rbac.yaml")
	c.control()
	second := *c
	second.hub = newHub()
	second.control()
	c.defaultAccount()

	c.register("first")
	second.register("other")
	second.register("kept")
	if _, err := c.admin.CoreV1().Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "server"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.cluster.Kubectl(t.Context(), "annotate", "node", "kept",
		"edgecore.io/keep-evictions=true"); err != nil {
		t.Fatal(err)
	}
	silent := []func(){
		c.beat(func(ctx context.Context) error { return c.ctl.Heartbeat(ctx, "first") }),
		c.beat(func(ctx context.Context) error { return second.ctl.Heartbeat(ctx, "other") }),
		c.beat(func(ctx context.Context) error { return second.ctl.Heartbeat(ctx, "kept") }),
		c.beat(func(ctx context.Context) error { return c.ready(ctx, "server") }),
	}
	live := c.live(6)
	for _, node := range append([]string{"first", "other", "kept", "server"}, live...) {
		if err := c.ready(t.Context(), node); err != nil {
			t.Fatal(err)
		}
	}
	wait.Until(c.t, "both cloudcores know of the annotation", func() error {
		for _, one := range []*cloud{c, &second} {
			o, err := one.ctl.Object("kept", key("null/node/kept"))
			if err != nil {
				return err
			}
			if node := decode[v1.Node](t, o.JSON); node.Annotations["edgecore.io/keep-evictions"] != "true" {
				return errors.New("not yet")
			}
		}
		return nil
	})
	for _, p := range []struct{ node, pod, extra string }{
		{"first", "on-first", ""}, {"other", "on-other", ""}, {"server", "on-server", ""}, {"kept", "on-kept", ""},
		{
			"other", "limited", ", tolerations: [{key: node.kubernetes.io/unreachable, operator: Exists, effect: " +
				"NoExecute, tolerationSeconds: 1}]",
		},
	} {
		c.bound(p.node, p.pod, p.extra)
		if p.node != "server" {
			c.wants(p.node, "default/pod/"+p.pod)
			second.wants(p.node, "default/pod/"+p.pod)
		}
	}
	for _, pod := range []string{"on-first", "on-other", "limited"} {
		wait.Until(c.t, pod+" tolerates all", func() error { return c.tolerant(pod) })
	}
	for _, stop := range silent {
		stop()
	}
	for _, name := range []string{"on-server", "on-kept"} {
		wait.Until(c.t, name+" is evicted", func() error { return c.evicted(name) })
	}
	for _, name := range live {
		n, err := c.admin.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || len(n.Status.Conditions) != 1 || n.Status.Conditions[0].Status != v1.ConditionTrue {
			t.Errorf("node with a renewed lease: %v, conditions %+v, want no error, one condition, True",
				err, n.Status.Conditions)
		}
	}
	// One that came later and is evicted shows that the turn of the others has passed.
	for _, node := range []string{"first", "other"} {
		wait.Until(c.t, node+" counts as unreachable", func() error { return c.unreachable(node) })
	}
	c.bound("server", "on-server-later", "")
	wait.Until(c.t, "the later pod is evicted", func() error { return c.evicted("on-server-later") })
	for _, name := range []string{"on-first", "on-other", "limited"} {
		if c.evicted(name) == nil {
			t.Errorf("evicted(%s) = nil, want an error: the pod is not evicted", name)
		}
	}
}

// live makes nodes of which signs of life come. Without enough of them, the controller manager takes the silence of the
// others for a fault of its own network, and evicts nothing.
func (c *cloud) live(n int) []string {
	c.t.Helper()
	var names []string
	for i := range n {
		name := fmt.Sprintf("live-%d", i)
		names = append(names, name)
		c.register(name)
		c.wants(name, "null/node/"+name)
		c.beat(func(ctx context.Context) error { return c.ctl.Heartbeat(ctx, name) })
	}
	return names
}

// beat gives a sign of life every second until it is told to stop, or the test ends.
func (c *cloud) beat(sign func(context.Context) error) (stop func()) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var beats sync.WaitGroup
	beats.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for ctx.Err() == nil {
			_ = sign(ctx) // the next one does it
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	})
	stop = func() {
		cancel()
		beats.Wait()
	}
	c.t.Cleanup(stop)
	return stop
}

// ready says that a node is well, which is a sign of life, too.
func (c *cloud) ready(ctx context.Context, node string) error {
	status :=
		fmt.Sprintf(
			`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"Test","lastHeartbeatTime":%[1]q,"lastTransitionTime":%[1]q}]}}`,
			time.Now().UTC().Format(time.RFC3339))
	_, err := c.admin.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, []byte(status),
		metav1.PatchOptions{}, "status")
	return err
}

// evicted returns nil when a pod is being deleted.
func (c *cloud) evicted(name string) error {
	c.t.Helper()
	p, err := c.admin.CoreV1().Pods("default").Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	if p.DeletionTimestamp == nil {
		return errors.New("it is not")
	}
	return nil
}

// unreachable returns nil when a node's pods are being evicted.
func (c *cloud) unreachable(node string) error {
	n, err := c.admin.CoreV1().Nodes().Get(c.t.Context(), node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, taint := range n.Spec.Taints {
		if taint.Key == v1.TaintNodeUnreachable && taint.Effect == v1.TaintEffectNoExecute {
			return nil
		}
	}
	return fmt.Errorf("its taints are %+v", n.Spec.Taints)
}
