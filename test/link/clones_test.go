package link

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/cloud"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/proxy"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestClones: a device and its copy, which are connected to different cloudcores, are noticed: an event and a condition
// of the Node say what to do, and when that is done the pods of the one that is left have run all the time. A node can
// change neither the condition nor the annotation by which it was noticed.
func TestClones(t *testing.T) {
	t.Parallel()
	c := startCluster(t, kube.Options{})
	second := c.WithCloud(t)
	e := startEdge(t, c, nil)
	e.apply(confAndKey, e.full("one"))
	e.running("one")
	before := e.RunningContainers()
	e.recordedOnce(second)

	twin := e.cloneTo(second.Cloud, testenv.StartContainerd(t, testenv.Options{}))
	const text = "Two devices use the certificate of node "
	c.EventsUntil(string(marks.DuplicateDevice), "Node/"+e.NodeName+": "+text+e.NodeName)
	duplicate := func(n *v1.Node) error {
		return env.NodeCondition(n, marks.DuplicateDevice, v1.ConditionTrue,
			"gettoken --node "+e.NodeName+" --replace")
	}
	c.NodeUntil(e.NodeName, "to have the condition", duplicate)

	e.rejoin(e.admin("gettoken", "--node", e.NodeName, "--replace"))
	wait.Until(t, "the copy to be refused for good", func() error {
		data, err := os.ReadFile(twin.Log())
		if err == nil && !strings.Contains(string(data), "node "+e.NodeName+" was revoked at ") &&
			!strings.Contains(string(data), "belongs to another device") {
			err = errors.New("its log does not say so")
		}
		return err
	})
	env.Must(t, twin.Kill9(t.Context()))
	wait.Until(t, "the device to be back", func() error { return e.settled() })
	e.apply(e.full("two"))
	e.running("one", "two")
	e.unchanged(before, "a copy of its device was connected")
	c.NodeUntil(e.NodeName, "to have the condition still, after the node's own reports", duplicate)
	wait.Until(t, "the API server, the store and the runtime to agree", e.agree)
}

// recordedOnce checks that the Node is not written again while it is the same run of the agent that connects: not when
// the link is cut, nor at another cloudcore, nor when a cloudcore starts again.
func (e *edge) recordedOnce(second *env.Cluster) {
	e.T.Helper()
	record := func() (record string) {
		e.cluster.NodeUntil(e.NodeName, "to have the annotation", func(n *v1.Node) error {
			if record = n.Annotations[marks.InstanceAnnotation]; record == "" {
				return fmt.Errorf("annotations are %v, want %s", n.Annotations, marks.InstanceAnnotation)
			}
			return nil
		})
		return record
	}
	first := record()
	for range 5 {
		e.cable.Set(proxy.Cut)
		e.cable.Set(proxy.Passing)
		wait.Until(e.T, "the link", e.settled)
	}
	e.cable.Retarget(net.JoinHostPort("127.0.0.1", strconv.Itoa(second.Cloud.Link)))
	e.apply(e.pod("elsewhere", env.Forever))
	e.running("elsewhere")
	e.cable.Retarget(net.JoinHostPort("127.0.0.1", strconv.Itoa(e.cluster.Cloud.Link)))
	env.Must(e.T, e.cluster.Cloud.Kill9(e.T.Context()))
	env.Must(e.T, e.cluster.Cloud.Start(e.T.Context()))
	wait.Until(e.T, "the link", e.settled)
	e.delete("elsewhere", 0)
	e.gone("elsewhere")
	if got := record(); got != first { // each write has its time
		e.T.Errorf("annotation after eight more links = %q, want still %q", got, first)
	}
	env.Must(e.T, e.Kill9(e.T.Context()))
	env.Must(e.T, e.Start(e.T.Context()))
	e.cluster.NodeUntil(e.NodeName, "to have another annotation", func(n *v1.Node) error {
		if got := n.Annotations[marks.InstanceAnnotation]; got == first || got == "" {
			return fmt.Errorf("it is %q, want another one than %q", got, first)
		}
		return nil
	})
	const path = "jsonpath={.status.conditions[?(@.type=='DuplicateDevice')]}"
	if got := e.cluster.Kubectl("get", "node", e.NodeName, "-o", path); got != "" {
		e.T.Errorf("condition DuplicateDevice of one device = %q, want none", got)
	}
}

// cloneTo starts a copy of the device, as an SD card is copied: certificate, store and name. It has another runtime,
// and is connected to one cloudcore.
func (e *edge) cloneTo(to *cloud.Cloud, runtime *containerd.Instance) *env.Node {
	e.T.Helper()
	hub := maps.Clone(e.EdgeHub)
	hub["websocket"] = map[string]any{"enable": true, "server": net.JoinHostPort("127.0.0.1", strconv.Itoa(to.Link))}
	opts := agent.Options{Dir: e.T.TempDir(), NodeName: e.NodeName, EdgeHub: hub, Kubelet: e.Kubelet}
	e.copyTo(opts.Dir)
	return env.StartNodeOn(e.T, built, runtime, opts)
}

// copyTo copies what makes the device this one. Its agent is killed for that, and started again.
func (e *edge) copyTo(dir string) {
	e.T.Helper()
	env.Must(e.T, e.Kill9(e.T.Context()))
	defer func() { env.Must(e.T, e.Start(e.T.Context())) }()
	files, err := filepath.Glob(e.Store() + "*")
	env.Must(e.T, err)
	for _, name := range []string{"ca.crt", "edge.crt", "edge.key"} {
		files = append(files, filepath.Join(e.Dir, name))
	}
	env.Must(e.T, os.MkdirAll(filepath.Join(dir, "db"), 0o700))
	for _, from := range files {
		data, err := os.ReadFile(from)
		env.Must(e.T, err)
		to, err := filepath.Rel(e.Dir, from)
		env.Must(e.T, err)
		env.Must(e.T, os.WriteFile(filepath.Join(dir, to), data, 0o600))
	}
}
