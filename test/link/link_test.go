// Package link shows the promises of the link on real parts: a Kubernetes cluster, a cloudcore, a cable that can be
// pulled, and for each test a containerd and an edgecore of its own.
//
// The tests below TestLink share a cluster and a cloudcore. What stops the API server, counts what a cloudcore does,
// stops one for good or wants another grace period of nodes has a cluster of its own.
package link

import (
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
	"github.com/edgecore-io/edgecore/test/testenv/proxy"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

var built = programs.Flags()

func TestMain(m *testing.M) { os.Exit(built.Run(m)) }

// TestLink runs the tests that share a cluster.
func TestLink(t *testing.T) {
	c := startCluster(t, kube.Options{})
	for _, test := range []struct {
		name string
		run  func(*testing.T, *env.Cluster)
	}{
		{"Apply", testApply},
		{"Join", testJoin},
		{"Offline", testOffline},
		{"Denied", testDenied},
		{"Older", testOlder},
		{"Token", testToken},
		{"QUIC", testQUIC},
		{"Devices", testDevices},
		{"MapperFramework", testMapperFramework},
		{"Modbus", testModbus},
		{"GoesBack", testGoesBack},
		{"Safe", testSafe},
		{"Metrics", testMetrics},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, c.With(t))
		})
	}
}

// startCluster starts a cluster with all of Kubernetes' own parts, and a cloudcore.
func startCluster(t *testing.T, opts kube.Options) *env.Cluster {
	t.Helper()
	opts.ControllerManager, opts.Scheduler = true, true
	return env.StartCluster(t, built, env.ClusterOptions{Kube: opts})
}

// edge is a node at the end of a cable, with a namespace of the same name for its pods.
type edge struct {
	*env.Node
	cluster *env.Cluster
	cable   *proxy.Proxy
}

// startEdge starts an edge that joins through its cable. hub are more keys of its modules.edgeHub.
func startEdge(t *testing.T, c *env.Cluster, hub map[string]any) *edge {
	return startEdgeWith(t, c, hub, nil)
}

// startEdgeWith also switches MQTT on, with keys of modules.eventBus.
func startEdgeWith(t *testing.T, c *env.Cluster, hub, eventBus map[string]any) *edge {
	t.Helper()
	e := &edge{cluster: c.With(t), cable: c.With(t).Cable()}
	name := nameOf(t)
	e.cluster.Namespace(name)
	all := map[string]any{"heartbeat": 2, "websocket": map[string]any{"enable": true, "server": e.cable.Addr()}}
	maps.Copy(all, hub)
	e.Node = e.cluster.StartNode(t, name, env.NodeOptions{Agent: agent.Options{
		EdgeHub: all, EventBus: eventBus,
		Kubelet: map[string]any{"nodeStatusUpdateFrequency": "2s", "syncFrequency": "5s"},
	}})
	return e
}

// nameOf returns the name of a test's node: "offline-cut" for TestLink/Offline/cut.
func nameOf(t *testing.T) string {
	name := strings.TrimPrefix(strings.TrimPrefix(t.Name(), "TestLink/"), "Test")
	return strings.ToLower(strings.ReplaceAll(name, "/", "-"))
}

// with returns the same edge for a subtest.
func (e *edge) with(t *testing.T) *edge {
	return &edge{Node: e.Node.With(t), cluster: e.cluster.With(t), cable: e.cable}
}

// apply applies manifests to the edge's namespace.
func (e *edge) apply(manifests ...string) {
	e.T.Helper()
	var all strings.Builder
	for _, m := range manifests {
		all.WriteString(strings.ReplaceAll(m, "metadata: {name: ", "metadata: {namespace: "+e.NodeName+", name: ") +
			"\n---\n")
	}
	e.cluster.Apply(all.String())
}

// running waits until the API server has pods as ready.
func (e *edge) running(names ...string) {
	e.T.Helper()
	e.cluster.PodsRunning(e.NodeName, names...)
}

// gone waits until the API server has no such pods.
func (e *edge) gone(names ...string) {
	e.T.Helper()
	e.cluster.PodsGone(e.NodeName, names...)
}

// containersGone waits until the runtime runs no container of these pods.
func (e *edge) containersGone(pods ...string) {
	e.T.Helper()
	for _, pod := range pods {
		wait.True(e.T, "the containers of "+pod+" to be gone", func() bool { return len(e.ContainersOf(pod)) == 0 })
	}
}

// unchanged checks that the containers that ran before still run, since the same time.
func (e *edge) unchanged(before map[string]int64, after string) {
	e.T.Helper()
	now := e.RunningContainers()
	for id, at := range before {
		if now[id] != at {
			e.T.Errorf("start of container %s after %s = %d, want %d (0: it does not run)", id, after, now[id], at)
		}
	}
}

// pod is the manifest of a pod that is bound to the edge by its nodeName. It has one container, "main".
func (e *edge) pod(name, script string, more ...string) string {
	return env.Pod(name, script, append([]string{"  nodeName: " + e.NodeName}, more...)...)
}

// full is a pod with a configmap, a secret and a token, which it needs at each start.
func (e *edge) full(name string) string {
	const script = "test -s /var/run/secrets/kubernetes.io/serviceaccount/token && test -s /conf/a && test -s /key/k " +
		"|| exit 1; "
	return e.pod(name, script+env.Forever, `  volumes:
  - {name: conf, configMap: {name: conf}}
  - {name: key, secret: {secretName: key}}`) +
		"    volumeMounts: [{name: conf, mountPath: /conf}, {name: key, mountPath: /key}]\n"
}

// confAndKey are the configmap and the secret of a full pod.
const confAndKey = `apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {a: one}
---
apiVersion: v1
kind: Secret
metadata: {name: key}
stringData: {k: hush}
`

// cloudLogs checks that cloudcore has logged a text.
func (e *edge) cloudLogs(text string) {
	e.T.Helper()
	data, err := os.ReadFile(e.cluster.Cloud.Log())
	env.Must(e.T, err)
	if !strings.Contains(string(data), text) {
		e.T.Errorf("end of cloudcore's log = %s\nwant %s in the log", daemon.Tail(e.cluster.Cloud.Log(), 10), text)
	}
}
