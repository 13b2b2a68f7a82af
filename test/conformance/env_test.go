package conformance

import (
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
)

// start starts a cluster and a cloudcore.
func start(t *testing.T) *fixture {
	t.Helper()
	c := env.StartCluster(t, built, env.ClusterOptions{
		Manifests: *manifests,
		Kube:      kube.Options{ControllerManager: true, APIServerFlags: APIServerFlags()},
	})
	return &fixture{cluster: c, kube: c.Kube, api: c.API}
}

// startNode starts a containerd and an edgecore that joins, and waits until the node is Ready.
func (f *fixture) startNode(t *testing.T, name string) *node {
	t.Helper()
	c := f.cluster.With(t)
	c.Namespace(name)
	n := c.StartNode(t, name, env.NodeOptions{
		Runtime: testenv.Options{Containerd2: name == containerd2, OwnUsers: name == containerd2},
		Agent: agent.Options{Kubelet: map[string]any{
			"maxPods":              500,
			"allowedUnsafeSysctls": []string{"net.core.somaxconn", "kernel.msg*"},
			"clusterDNS":           []string{"10.96.0.10"},
			"clusterDomain":        "cluster.local",
		}},
	})
	return &node{Node: n, fixture: f, t: t, name: name, ctrd: n.Containerd, cri: n.CRI}
}
