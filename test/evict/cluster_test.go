package evict

import (
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
)

// nodeName is the node's name in the cluster.
const nodeName = "edge-1"

// conditioned checks the conditions of a Node, all of which are False but Ready and those that are named with their
// reasons, and that it has the taints of those.
func conditioned(reasons map[v1.NodeConditionType]string) func(*v1.Node) error {
	return func(n *v1.Node) error {
		for _, kind := range []v1.NodeConditionType{
			v1.NodeReady, v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure,
		} {
			i := slices.IndexFunc(n.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == kind })
			if i < 0 {
				return fmt.Errorf("no condition %s", kind)
			}
			c := n.Status.Conditions[i]
			reason, want := reasons[kind]
			if (c.Status == v1.ConditionTrue) != (want || kind == v1.NodeReady) || want && c.Reason != reason {
				return fmt.Errorf("%s is %s: %s %s, want %v %s", kind, c.Status, c.Reason, c.Message,
					want || kind == v1.NodeReady, reason)
			}
		}
		tainted := slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool {
			return t.Key == v1.TaintNodeDiskPressure && t.Effect == v1.TaintEffectNoSchedule
		})
		if _, want := reasons[v1.NodeDiskPressure]; tainted != want {
			return fmt.Errorf("taints are %+v, want that of disk pressure: %v", n.Spec.Taints, want)
		}
		return nil
	}
}

// run creates a pod on the node, whatever the node's taints.
func run(c *env.Cluster, name string) {
	c.T.Helper()
	c.Apply(fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  containers: [{name: main, image: "edgecore.local/demo:1", command: [sleep, "100000"]}]
`, name, nodeName))
}

// TestTheClusterLearns: while the disk of a node is full, by a pod that may not be evicted, its Node has the
// condition and the taint; pods that may be evicted are, with the reason, and new ones are rejected. When there is
// room again, all of it is over.
func TestTheClusterLearns(t *testing.T) {
	t.Parallel()
	c := env.StartCluster(t, built, env.ClusterOptions{Kube: kube.Options{ControllerManager: true}})
	n := c.StartNode(t, nodeName, env.NodeOptions{
		Agent: agent.Options{Dir: small(t, "size=96m"), Kubelet: map[string]any{
			"evictionHard":                     map[string]any{"memory.available": "10Mi", "nodefs.available": "30Mi"},
			"evictionPressureTransitionPeriod": "1s", "nodeStatusUpdateFrequency": "1s",
			"systemReserved": map[string]any{"memory": "50Mi"},
		}},
	})
	c.NodeUntil(nodeName, "to be under no pressure", conditioned(nil))
	c.NodeUntil(nodeName, "to reserve", func(n *v1.Node) error {
		capacity, allocatable := n.Status.Capacity, n.Status.Allocatable
		if kept := capacity.Memory().Value() - allocatable.Memory().Value(); kept != 60<<20 {
			return fmt.Errorf("%d bytes of memory are kept from pods, want 60Mi: what is reserved, and the threshold",
				kept)
		}
		disk, forPods := capacity[v1.ResourceEphemeralStorage], allocatable[v1.ResourceEphemeralStorage]
		if kept := disk.Value() - forPods.Value(); kept != 30<<20 {
			return fmt.Errorf("%d bytes of the disk are kept from pods, want 30Mi", kept)
		}
		return nil
	})
	run(c, "before")
	c.PodsRunning("default", "before")

	n.Manifest("holds", `apiVersion: v1
kind: Pod
metadata: {name: holds}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: data, emptyDir: {}}]
  containers:
  - name: main
    image: edgecore.local/demo:1
    command: [sh, -c, "dd if=/dev/zero of=/data/f bs=1M count=70; exec sleep 100000"]
    volumeMounts: [{name: data, mountPath: /data}]
`)
	pressed := conditioned(map[v1.NodeConditionType]string{v1.NodeDiskPressure: "KubeletHasDiskPressure"})
	c.NodeUntil(nodeName, "to be under disk pressure", pressed)
	c.PodUntil("default", "before", "to be evicted", func(p *v1.Pod) error {
		if p.Status.Phase != v1.PodFailed || p.Status.Reason != "Evicted" {
			return fmt.Errorf("it is %s %s, want Failed Evicted", p.Status.Phase, p.Status.Reason)
		}
		return disrupted(p)
	})
	run(c, "meanwhile")
	c.PodUntil("default", "meanwhile", "to be rejected", func(p *v1.Pod) error {
		const want = "Pod was rejected: The node had condition: [DiskPressure]. "
		if p.Status.Phase != v1.PodFailed || p.Status.Reason != "Evicted" || p.Status.Message != want {
			return fmt.Errorf("it is %s %s %q, want Failed Evicted %q", p.Status.Phase, p.Status.Reason,
				p.Status.Message, want)
		}
		return nil
	})
	c.EventsUntil("Evicted", "Pod/before: The node was low on resource: ephemeral-storage.")
	c.EventsUntil("NodeHasDiskPressure", "Node/"+nodeName+": Node "+nodeName+" status is now: NodeHasDiskPressure")
	c.NodeUntil(nodeName, "to be under disk pressure still", pressed)

	n.Remove("holds")
	c.NodeUntil(nodeName, "to have room again", conditioned(nil))
	run(c, "after")
	c.PodsRunning("default", "after")
}
