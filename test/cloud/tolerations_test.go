package cloud

import (
	"context"
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestCloudcoreDiesBeforeItPatches: the only cloudcore stops after a pod was bound and before its tolerations were
// due. The node counts as unreachable, and the real controller manager waits for the pod's time. A cloudcore that
// comes meanwhile patches at once, and the pod stays; so does one that was patched before. A pod of a server is
// evicted.
func TestCloudcoreDiesBeforeItPatches(t *testing.T) {
	t.Parallel()
	c := start(t, kube.Options{
		ControllerManager:      true,
		NodeMonitorGracePeriod: 20 * time.Second,
		NodeMonitorPeriod:      500 * time.Millisecond,
		ControllerManagerFlags: []string{"--node-eviction-rate=10"},
	}, "base/rbac.yaml")
	stop := c.startController()
	t.Cleanup(stop)
	c.defaultAccount()
	c.register("edge")
	// Most nodes have to be well: the controller manager takes the silence of all for a fault of its own network.
	names := []string{"edge", "server"}
	for i := range 6 {
		names = append(names, fmt.Sprintf("well-%d", i))
	}
	var silence []func()
	for _, name := range names {
		if name != "edge" {
			node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
			if _, err := c.admin.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.ready(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		still := c.beat(func(ctx context.Context) error { return c.ready(ctx, name) })
		if name == "edge" || name == "server" {
			silence = append(silence, still)
		}
	}
	wait.Until(t, "no time runs for pods of edge", func() error {
		n, err := c.admin.CoreV1().Nodes().Get(t.Context(), "edge", metav1.GetOptions{})
		if err == nil && len(n.Spec.Taints) > 0 {
			err = fmt.Errorf("its taints are %+v", n.Spec.Taints)
		}
		return err
	})

	c.pod("edge", "patched", tolerating(1))
	wait.Until(t, "a pod that cannot wait long tolerates all", func() error { return c.tolerant("patched") })
	c.pod("edge", "young", tolerating(60))
	stop()
	young, err := c.admin.CoreV1().Pods("default").Get(t.Context(), "young", metav1.GetOptions{})
	if err != nil || young.Generation != 1 {
		t.Fatalf("generation of a new pod = %d, %v; want 1", young.Generation, err)
	}
	for _, still := range silence {
		still()
	}
	for _, node := range []string{"edge", "server"} {
		wait.Until(t, node+" counts as unreachable", func() error { return c.unreachable(node) })
	}
	if err := c.evicted("young"); err == nil {
		t.Fatal("evicted(young) before its time has passed = nil, want an error: the pod is not evicted")
	}
	t.Cleanup(c.startController())
	wait.Until(t, "the pod tolerates all", func() error { return c.tolerant("young") })
	// Its time begins later than that of the others.
	c.apply(fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: on-server}, "+
		"spec: {nodeName: server, containers: [{name: c, image: example.com/c:1}]%s}}", tolerating(60)))
	wait.Until(t, "a server's pod is evicted", func() error { return c.evicted("on-server") })
	for _, name := range []string{"young", "patched"} {
		if c.evicted(name) == nil {
			t.Errorf("pod %s is evicted, want it kept", name)
		}
	}
}

// tolerating is a part of a pod's specification: it tolerates nodes that cannot be reached for so many seconds.
func tolerating(seconds int) string {
	const one = "{key: node.kubernetes.io/%s, operator: Exists, effect: NoExecute, tolerationSeconds: %d}"
	return fmt.Sprintf(", tolerations: ["+one+", "+one+"]", "not-ready", seconds, "unreachable", seconds)
}
