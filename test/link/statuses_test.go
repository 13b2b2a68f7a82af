package link

import (
	"errors"
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestStatuses: if another writer overwrites the status of a pod, the node's own status returns, over the same link.
// The writer is a person, also for a mirror pod, or a copy of the device that reported to another cloudcore before both
// were killed.
func TestStatuses(t *testing.T) {
	t.Parallel()
	c := startCluster(t, kube.Options{})
	second := c.WithCloud(t)
	e := startEdge(t, c, nil)
	e.apply(confAndKey, e.full("one"), e.full("two"))
	e.running("one", "two")
	wait.Until(t, "all objects to be acknowledged", e.settled)
	links := e.Metric("edgecore_link_connects_total")
	e.Manifest("own", env.Pod("own", env.Forever))
	mirror := "own-" + e.NodeName
	c.PodsRunning("default", mirror)
	c.Kubectl("patch", "pod", mirror, "--subresource=status", "--type=merge", "-p", `{"status": {"phase": "Pending"}}`)
	e.ownStatus("default", mirror)
	e.Remove("own")
	c.PodsGone("default", mirror)
	before := e.RunningContainers()
	for _, patch := range []string{
		`[{"op": "replace", "path": "/status/containerStatuses/0/containerID", "value": "containerd://00"}]`,
		`[{"op": "replace", "path": "/status/phase", "value": "Pending"},
		{"op": "add", "path": "/status/message", "value": "somebody"},
		{"op": "replace", "path": "/status/containerStatuses", "value": []}]`, // soon after the first
	} {
		c.Kubectl("patch", "pod", "one", "-n", e.NodeName, "--subresource=status", "--type=json", "-p", patch)
		e.ownStatus(e.NodeName, "one")
	}
	if now := e.Metric("edgecore_link_connects_total"); now != links {
		t.Errorf("links after three statuses were overwritten = %s, want still %s", now, links)
	}
	if n := e.metric("cloudcore_edgecontroller_status_requests_total"); n < 3 {
		t.Errorf("requests for statuses = %v, want at least 3", n)
	}

	twin := e.cloneTo(second.Cloud, testenv.StartContainerd(t, testenv.Options{}))
	c.PodUntil(e.NodeName, "one", "to be reported by the copy", func(p *v1.Pod) error {
		if id := containerID(p); before[id] != 0 || id == "" {
			return errors.New("its status is the device's")
		}
		return nil
	})
	env.Must(t, twin.Kill9(t.Context()))
	env.Must(t, second.Cloud.Kill9(t.Context()))
	e.ownStatus(e.NodeName, "one")
	e.ownStatus(e.NodeName, "two")
	e.unchanged(before, "other writers of its status")
	wait.Until(t, "the API server, the store and the runtime to agree", e.agree)
}

// ownStatus waits until the status of a pod is that of its container on the edge.
func (e *edge) ownStatus(namespace, name string) {
	e.T.Helper()
	e.cluster.PodUntil(namespace, name, "to have its own status", func(p *v1.Pod) error {
		if err := env.RunningPod(p); err != nil {
			return err
		}
		if id := containerID(p); p.Status.Message != "" || e.RunningContainers()[id] == 0 {
			return fmt.Errorf("message %q, container %q, which does not run", p.Status.Message, id)
		}
		return nil
	})
}
