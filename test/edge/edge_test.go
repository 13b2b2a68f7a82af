// Package edge shows the promises of edgecore on real parts: a containerd and an edgecore of each test's own.
package edge

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/cri"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
)

// patience bounds every wait: these machines are shared.
const patience = 2 * time.Minute

var binary struct {
	once sync.Once
	path string
	err  error
}

// TestMain builds the agent once for all tests.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "edgecore-test-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary.once.Do(func() { binary.path, binary.err = agent.Build(context.Background(), dir) })
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// node is a containerd with an edgecore on it.
type node struct {
	*agent.Agent
	t    *testing.T
	ctrd *containerd.Instance
	cri  *cri.Client
}

func newNode(t *testing.T, opts testenv.Options, agentOpts agent.Options) *node {
	t.Helper()
	if binary.err != nil {
		t.Fatal(binary.err)
	}
	agentOpts.Binary = binary.path
	ctrd := testenv.StartContainerd(t, opts)
	return &node{Agent: testenv.StartAgent(t, ctrd, agentOpts), t: t, ctrd: ctrd, cri: testenv.Dial(t, ctrd)}
}

// pod is a manifest of one container that runs a shell script.
func pod(name, script string, more ...string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
%s
  containers:
  - name: main
    image: edgecore.local/demo:1
    command: [sh, -c, %q]
`, name, strings.Join(more, "\n"), script)
}

// forever is a script that ends at once when it is told to.
const forever = "trap 'exit 0' TERM; while true; do sleep 1 & wait; done"

func (n *node) manifest(name, content string) {
	n.t.Helper()
	if err := n.WriteManifest(name, content); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) remove(name string) {
	n.t.Helper()
	if err := n.RemoveManifest(name); err != nil {
		n.t.Fatal(err)
	}
}

// until waits for the pods to be as a check wants them.
func (n *node) until(what string, check func(pods map[string]*v1.Pod) error) map[string]*v1.Pod {
	n.t.Helper()
	var last map[string]*v1.Pod
	testenv.Poll(n.t, patience, func() error {
		pods, err := n.Pods(n.t.Context())
		if err != nil {
			return err
		}
		last = pods
		if err := check(pods); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
	return last
}

// running checks that pods are ready.
func running(names ...string) func(map[string]*v1.Pod) error {
	return func(pods map[string]*v1.Pod) error {
		for _, name := range names {
			p := pods[name]
			if p == nil {
				return fmt.Errorf("no pod %s", name)
			}
			if p.Status.Phase != v1.PodRunning || !ready(p) {
				return fmt.Errorf("pod %s is %s: %+v", name, p.Status.Phase, p.Status.ContainerStatuses)
			}
		}
		return nil
	}
}

func ready(p *v1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodReady && c.Status == v1.ConditionTrue })
}

// waits checks that the container of a pod waits for a reason.
func waits(name, reason, message string) func(map[string]*v1.Pod) error {
	return func(pods map[string]*v1.Pod) error {
		p := pods[name]
		if p == nil || len(p.Status.ContainerStatuses) == 0 {
			return fmt.Errorf("no status of %s", name)
		}
		w := p.Status.ContainerStatuses[0].State.Waiting
		if w == nil || w.Reason != reason || !strings.Contains(w.Message, message) {
			return fmt.Errorf("%s: state %+v, want %s with %q", name, p.Status.ContainerStatuses[0].State, reason, message)
		}
		return nil
	}
}

func gone(names ...string) func(map[string]*v1.Pod) error {
	return func(pods map[string]*v1.Pod) error {
		for _, name := range names {
			if pods[name] != nil {
				return fmt.Errorf("pod %s is still there", name)
			}
		}
		return nil
	}
}

// lives are the running containers by id, with their start times.
func (n *node) lives() map[string]int64 {
	n.t.Helper()
	list, err := n.cri.ListContainers(n.t.Context(), &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}},
	})
	if err != nil {
		n.t.Fatal(err)
	}
	lives := map[string]int64{}
	for _, c := range list.Containers {
		st, err := n.cri.ContainerStatus(n.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: c.Id})
		if status.Code(err) == codes.NotFound {
			continue // it has gone since
		}
		if err != nil {
			n.t.Fatal(err)
		}
		lives[c.Id] = st.Status.StartedAt
	}
	return lives
}

// names makes p0 ... p<n-1>.
func names(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("p%d", i))
	}
	return out
}

// logged returns what a container has written.
func (n *node) logged(pod *v1.Pod, container string) string {
	n.t.Helper()
	out, err := n.Run(n.t.Context(), "logs", pod.Name, "-c", container)
	if err != nil {
		n.t.Fatalf("logs: %v: %s", err, out)
	}
	return out
}

// nothingLeft checks that no folder, log, cgroup or sandbox of any pod is there.
func (n *node) nothingLeft() {
	n.t.Helper()
	testenv.Poll(n.t, patience, func() error {
		for _, dir := range []string{filepath.Join(n.Dir, "root", "pods"), n.PodLogs()} {
			entries, err := os.ReadDir(dir)
			if err != nil && !os.IsNotExist(err) {
				return err
			}
			if len(entries) > 0 {
				return fmt.Errorf("%s: %s is left", dir, entries[0].Name())
			}
		}
		if groups, err := n.ctrd.PodCgroups(); err != nil || len(groups) > 0 {
			return fmt.Errorf("cgroups left: %v, %w", groups, err)
		}
		boxes, err := n.cri.ListPodSandbox(n.t.Context(), &runtimeapi.ListPodSandboxRequest{})
		if err == nil && len(boxes.Items) > 0 {
			err = fmt.Errorf("%d sandboxes are left", len(boxes.Items))
		}
		return err
	})
}

// namespace names a namespace of this process.
func namespace(t *testing.T, kind string) string {
	t.Helper()
	link, err := os.Readlink("/proc/self/ns/" + kind)
	if err != nil {
		t.Fatal(err)
	}
	return link
}
