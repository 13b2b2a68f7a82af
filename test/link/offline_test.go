package link

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/proxy"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// testOffline: the link is pulled, the agent killed, every container removed, and all pods are back with what they
// need. When the link returns nothing restarts, and what happened meanwhile is reported both ways.
func testOffline(t *testing.T, c *env.Cluster) {
	for name, state := range map[string]proxy.State{"cut": proxy.Cut, "silent": proxy.Silent} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := startEdge(t, c, nil)
			names := []string{"one", "two", "three", "four"}
			e.apply(confAndKey)
			for _, n := range names {
				e.apply(e.full(n))
			}
			e.running(names...)
			e.cable.Set(state)
			env.Must(t, e.Kill9(t.Context()))
			testenv.RemoveSandboxes(t, e.CRI)
			env.Must(t, e.Start(t.Context()))
			e.Until("all pods to be back without a cloud", func(pods map[string]*v1.Pod) error {
				if n := len(e.RunningContainers()); n != len(names) { // at first the agent shows what it knew
					return fmt.Errorf("%d containers run, want %d", n, len(names))
				}
				return env.Running(names...)(pods)
			})
			before := e.RunningContainers()
			e.changeMeanwhile()
			e.cable.Set(proxy.Passing)
			e.checkReconnected(names[:2], before)
		})
	}
}

// changeMeanwhile changes things in the cluster that the device cannot know of.
func (e *edge) changeMeanwhile() {
	e.T.Helper()
	e.apply(strings.Replace(confAndKey, "a: one", "a: two", 1))
	e.delete("four", 1)
	e.delete("three", 0)
	e.apply(e.full("five"))
	if out, err := e.ExecIn("two", "cat", "/conf/a"); err != nil || out != "one" {
		e.T.Errorf("the configmap without a link = %q, %v, want %q", out, err, "one")
	}
}

// checkReconnected checks that both sides learn what happened, and that the pods that stay still run in their earlier
// containers.
func (e *edge) checkReconnected(stay []string, before map[string]int64) {
	t := e.T
	for _, name := range stay {
		e.cluster.PodUntil(e.NodeName, name, "to have its status of now", func(p *v1.Pod) error {
			if id := containerID(p); before[id] == 0 {
				return fmt.Errorf("it still has container %s", id)
			}
			return nil
		})
	}
	e.running("five")
	e.gone("three", "four")
	wait.Until(t, "the change of the configmap", func() error {
		out, err := e.ExecIn("two", "cat", "/conf/a")
		if err == nil && out != "two" {
			err = fmt.Errorf("it is %q, want %q", out, "two")
		}
		return err
	})
	e.containersGone("three", "four")
	after := e.RunningContainers()
	for _, name := range stay {
		p := e.cluster.PodUntil(e.NodeName, name, "to be there", func(*v1.Pod) error { return nil })
		if id := containerID(p); after[id] == 0 || after[id] != before[id] {
			t.Errorf("container %s of pod %s started at %d, want %d as before the link returned", id, name, after[id],
				before[id])
		}
	}
}

// containerID returns the id of a pod's first container, as the runtime has it.
func containerID(p *v1.Pod) string {
	if len(p.Status.ContainerStatuses) == 0 {
		return ""
	}
	return strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://")
}

// TestReconnectsRestartNothing: 5 cuts, a killed cloudcore, a restarted API server; no container notices.
func TestReconnectsRestartNothing(t *testing.T) {
	t.Parallel()
	e := startEdge(t, startCluster(t, kube.Options{}), nil)
	e.apply(confAndKey, e.full("one"), e.full("two"))
	e.running("one", "two")
	before := e.RunningContainers()
	wait.Until(t, "all objects to be acknowledged", e.settled)
	pushes, statuses := e.pushes(), e.statuses()
	for range 5 {
		wait.Until(t, "the link to be cut", func() error {
			n := e.cable.Conns()
			if n == 0 {
				return nil
			}
			e.cable.CutAfter(0)
			return fmt.Errorf("%d connections", n)
		})
		wait.Until(t, "all objects to be acknowledged over a new link", e.settled)
	}
	if again := e.pushes(); again != pushes {
		t.Errorf("cloudcore has sent %v objects, want %v as before the cuts: nothing has changed", again, pushes)
	}
	if again := e.statuses(); again != statuses {
		t.Errorf("the node has reported %v pod statuses, want %v as before the cuts: the API server has them", again,
			statuses)
	}
	env.Must(t, e.cluster.Cloud.Kill9(t.Context()))
	env.Must(t, e.cluster.Cloud.Start(t.Context()))
	env.Must(t, e.cluster.Kube.APIServer.Restart(t.Context()))
	wait.Until(t, "the API server to take a new pod", func() error {
		manifest := strings.Replace(e.full("three"), "{name: three}", "{name: three, namespace: "+e.NodeName+"}", 1)
		return e.cluster.Kube.Apply(t.Context(), manifest)
	})
	e.running("three")
	e.unchanged(before, "the restart of the API server")
	if ids := slices.Collect(maps.Keys(e.RunningContainers())); len(ids) != 3 {
		t.Errorf("containers %v run, want 3", ids)
	}
}

// metric is the value of one of cloudcore's metrics.
func (e *edge) metric(name string) float64 {
	e.T.Helper()
	var text string
	wait.Until(e.T, "cloudcore's metrics", func() (err error) {
		text, err = e.cluster.Cloud.Get(e.T.Context(), "/metrics")
		return err
	})
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			value, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			env.Must(e.T, err)
			return value
		}
	}
	e.T.Fatalf("metrics = %s\nwant %s among them", text, name)
	return 0
}

// pushes is how many objects edges have acknowledged so far.
func (e *edge) pushes() float64 { return e.metric("cloudcore_cloudhub_ack_seconds_count") }

// statuses is how many statuses of pods the API server has taken from nodes so far.
func (e *edge) statuses() float64 {
	return e.metric(`cloudcore_edgecontroller_requests_total{code="200",operation="patch",type="podpatch"}`)
}

// connected checks how many nodes are connected to the edge's cloudcore.
func (e *edge) connected(want float64) error {
	if n := e.metric("cloudcore_cloudhub_connected_nodes"); n != want {
		return fmt.Errorf("%v nodes are connected, want %v", n, want)
	}
	return nil
}

// settled checks that the edge, the only one of its cloudcore, is connected and nothing is on its way to it.
func (e *edge) settled() error {
	if err := e.connected(1); err != nil {
		return err
	}
	if n := e.metric("cloudcore_cloudhub_queued_objects") + e.metric("cloudcore_cloudhub_unacked_messages"); n > 0 {
		return fmt.Errorf("%v objects are on their way, want 0", n)
	}
	return nil
}

// TestLongOutage: Kubernetes takes the pods of an edge that is away for not ready; they stay, run on, and are Ready
// again when it returns. (Evictions, and pods that want them: test/cloud.) In this cluster a node that says nothing for
// 20 s counts as unreachable.
func TestLongOutage(t *testing.T) {
	t.Parallel()
	c := startCluster(t, kube.Options{NodeMonitorGracePeriod: 20 * time.Second, NodeMonitorPeriod: time.Second})
	e := startEdge(t, c, nil)
	// A pod that comes while cloudcore knows the Node as not ready is changed at once.
	c.NodeUntil(e.NodeName, "to have no taints", func(n *v1.Node) error {
		if len(n.Spec.Taints) > 0 {
			return fmt.Errorf("it has %v", n.Spec.Taints)
		}
		return nil
	})
	e.apply(e.pod("first", env.Forever)) // until it runs, cloudcore has seen that, too
	e.running("first")
	e.apply(e.pod("stays", env.Forever))
	e.running("stays")
	p := c.PodUntil(e.NodeName, "stays", "to be ready", func(p *v1.Pod) error {
		if !env.IsReady(p) {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	if p.Generation != 1 {
		t.Errorf("generation of a pod that has just started = %d, want 1", p.Generation)
	}
	before := e.RunningContainers()
	e.cable.Set(proxy.Cut)
	away := c.PodUntil(e.NodeName, "stays", "to count as not ready", func(p *v1.Pod) error {
		if env.IsReady(p) {
			return fmt.Errorf("it is ready")
		}
		return nil
	})
	if away.UID != p.UID || away.DeletionTimestamp != nil {
		t.Errorf("the pod of an edge that is away has UID %s, deleted at %v; want %s, not deleted",
			away.UID, away.DeletionTimestamp, p.UID)
	}
	// cloudcore sees the outage, too, and takes the limit off before Kubernetes evicts the pod.
	c.PodUntil(e.NodeName, "stays", "to tolerate an outage without a limit", func(p *v1.Pod) error {
		for _, key := range []string{v1.TaintNodeNotReady, v1.TaintNodeUnreachable} {
			if !slices.ContainsFunc(p.Spec.Tolerations, func(tol v1.Toleration) bool {
				return tol.Key == key && tol.Effect == v1.TaintEffectNoExecute && tol.TolerationSeconds == nil
			}) {
				return fmt.Errorf("its tolerations are %v, want %s with no limit", p.Spec.Tolerations, key)
			}
		}
		return nil
	})
	e.cable.Set(proxy.Passing)
	c.NodeUntil(e.NodeName, "to be Ready again", env.Ready)
	e.running("stays")
	c.PodUntil(e.NodeName, "stays", "to be seen with its tolerations", func(p *v1.Pod) error {
		if p.Status.ObservedGeneration != p.Generation {
			return fmt.Errorf("observed generation %d of %d", p.Status.ObservedGeneration, p.Generation)
		}
		return nil
	})
	e.unchanged(before, "an outage and a change of tolerations")
}
