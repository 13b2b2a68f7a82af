// Package edge shows the promises of edgecore on real parts: a containerd and an edgecore of each test's own.
package edge

import (
	"fmt"
	"os"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

var built = programs.Flags()

func TestMain(m *testing.M) { os.Exit(built.Run(m)) }

// node is a node of the fixture, with a store that tests change.
type node struct{ *env.Node }

func newNode(t *testing.T, opts env.NodeOptions) *node {
	t.Helper()
	return &node{env.StartNode(t, built, opts)}
}

// kill kills the agent.
func (n *node) kill() {
	n.T.Helper()
	env.Must(n.T, n.Kill9(n.T.Context()))
}

// start starts an agent that was killed or stopped.
func (n *node) start() {
	n.T.Helper()
	env.Must(n.T, n.Start(n.T.Context()))
}

// untouched fails the test unless the earlier containers run, with the start times that they had then.
func (n *node) untouched(before map[string]int64) {
	n.T.Helper()
	after := n.RunningContainers()
	for id, at := range before {
		if after[id] != at {
			n.T.Errorf("container %s started at %d, want %d as before (0: it does not run)", id, after[id], at)
		}
	}
}

// same fails the test unless the earlier containers run, and no others.
func (n *node) same(before map[string]int64) {
	n.T.Helper()
	n.untouched(before)
	if after := n.RunningContainers(); len(before) == 0 || len(after) != len(before) {
		n.T.Errorf("%d containers run, want the %d of before, and some", len(after), len(before))
	}
}

// saysUntil waits until the log of a pod's container contains all texts, and returns it.
func (n *node) saysUntil(p *v1.Pod, texts ...string) (out string) {
	n.T.Helper()
	wait.Until(n.T, "the log of pod "+p.Name, func() error {
		out = n.Logs(p, "main")
		for _, text := range texts {
			if !strings.Contains(out, text) {
				return fmt.Errorf("the container says %q, want %q in it", out, text)
			}
		}
		return nil
	})
	return out
}

// nothingRuns waits until no container runs.
func (n *node) nothingRuns() {
	n.T.Helper()
	wait.Until(n.T, "all containers to end", func() error {
		if left := n.RunningContainers(); len(left) > 0 {
			return fmt.Errorf("%d containers run, want none", len(left))
		}
		return nil
	})
}

// sandboxesOf returns the sandboxes of a static pod.
func (n *node) sandboxesOf(name string) []*runtimeapi.PodSandbox {
	n.T.Helper()
	boxes, err := n.CRI.ListPodSandbox(n.T.Context(), &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{
			"io.kubernetes.pod.name": name + "-" + n.NodeName,
		}},
	})
	env.Must(n.T, err)
	return boxes.Items
}

// waiting checks that the container of a pod waits for a reason.
func waiting(name, reason, message string) env.Check {
	return func(pods map[string]*v1.Pod) error {
		p := pods[name]
		if p == nil || len(p.Status.ContainerStatuses) == 0 {
			return fmt.Errorf("pod %s has no status of its container", name)
		}
		w := p.Status.ContainerStatuses[0].State.Waiting
		if w == nil || w.Reason != reason || !strings.Contains(w.Message, message) {
			return fmt.Errorf("pod %s: state %+v, want %s with %q", name, p.Status.ContainerStatuses[0].State, reason,
				message)
		}
		return nil
	}
}

// restarted checks that the container of a pod was restarted once after it exited with a code, and runs.
func restarted(name string, exitCode int32) env.Check {
	return func(pods map[string]*v1.Pod) error {
		p := pods[name]
		if p == nil || len(p.Status.ContainerStatuses) == 0 {
			return fmt.Errorf("pod %s has no status of its container", name)
		}
		c := p.Status.ContainerStatuses[0]
		last := c.LastTerminationState.Terminated
		if c.RestartCount != 1 || c.State.Running == nil || last == nil || last.ExitCode != exitCode {
			return fmt.Errorf("pod %s: %+v, want 1 restart after exit code %d, and Running", name, c, exitCode)
		}
		return nil
	}
}

// names makes p0 ... p<n-1>.
func names(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("p%d", i))
	}
	return out
}

// namespace names a namespace of this process.
func namespace(t *testing.T, kind string) string {
	t.Helper()
	link, err := os.Readlink("/proc/self/ns/" + kind)
	env.Must(t, err)
	return link
}
