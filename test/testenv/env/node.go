// Package env is the fixture of the integration suites: an edgecore on a containerd of its own ([Node]), and a
// Kubernetes cluster with a cloudcore that nodes join ([Cluster]). Everything that it starts is removed when the test
// ends, and the test fails if something is left, or if a program panicked or raced.
package env

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/programs"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// Node is an edgecore on a containerd that nobody else uses.
type Node struct {
	*agent.Agent
	T          testing.TB
	Containerd *containerd.Instance
	CRI        *cri.Client
}

// NodeOptions say which runtime and which agent a test wants. The zero value is the machine's containerd with the test
// images, and an agent with no link.
type NodeOptions struct {
	Runtime testenv.Options
	Agent   agent.Options
}

// StartNode starts a containerd and an edgecore, and waits until the agent's port answers.
func StartNode(t testing.TB, built *programs.Set, opts NodeOptions) *Node {
	t.Helper()
	return StartNodeOn(t, built, testenv.StartContainerd(t, opts.Runtime), opts.Agent)
}

// StartNodeOn is StartNode on a containerd that the test has started.
func StartNodeOn(t testing.TB, built *programs.Set, ctrd *containerd.Instance, opts agent.Options) *Node {
	t.Helper()
	if opts.Binary == "" {
		opts.Binary = built.Edge
	}
	if opts.Dir == "" {
		opts.Dir = t.TempDir()
	}
	n := &Node{T: t, Containerd: ctrd, CRI: testenv.Dial(t, ctrd)}
	t.Cleanup(func() { // after the agent has stopped
		if n.Agent != nil {
			CheckLog(t, n.Log())
		}
	})
	n.Agent = testenv.StartAgent(t, ctrd, opts)
	return n
}

// With returns the same node for a subtest, which fails instead of the test that started the node.
func (n *Node) With(t testing.TB) *Node {
	sub := *n
	sub.T = t
	return &sub
}

// Manifest writes a manifest of static pods; name needs no ".yaml".
func (n *Node) Manifest(name, content string) {
	n.T.Helper()
	Must(n.T, n.WriteManifest(yamlFile(name), content))
}

// Remove removes a manifest.
func (n *Node) Remove(name string) {
	n.T.Helper()
	Must(n.T, n.RemoveManifest(yamlFile(name)))
}

func yamlFile(name string) string { return strings.TrimSuffix(name, ".yaml") + ".yaml" }

// A Check says what pods are not as they should be, or nil. The pods are those of a node, by name; a static pod is
// listed by the name in its manifest.
type Check func(pods map[string]*v1.Pod) error

// Until waits until the node's own list of pods satisfies a check, and returns that list.
func (n *Node) Until(what string, check Check) map[string]*v1.Pod {
	n.T.Helper()
	var last map[string]*v1.Pod
	wait.Until(n.T, what, func() (err error) {
		if last, err = n.Pods(n.T.Context()); err != nil {
			return err
		}
		return check(last)
	})
	return last
}

// Running waits until pods run and are ready, and returns the node's pods.
func (n *Node) Running(names ...string) map[string]*v1.Pod {
	n.T.Helper()
	return n.Until("pods to be ready", Running(names...))
}

// Gone waits until the node has no such pods.
func (n *Node) Gone(names ...string) {
	n.T.Helper()
	n.Until("pods to be gone", Gone(names...))
}

// Running checks that pods run and are ready.
func Running(names ...string) Check {
	return func(pods map[string]*v1.Pod) error {
		for _, name := range names {
			if err := RunningPod(pods[name]); err != nil {
				return fmt.Errorf("pod %s: %w", name, err)
			}
		}
		return nil
	}
}

// RunningPod checks that a pod runs and is ready.
func RunningPod(p *v1.Pod) error {
	if p == nil {
		return errors.New("it is not there")
	}
	if p.Status.Phase != v1.PodRunning || !IsReady(p) {
		return fmt.Errorf("it is %s %s %s, want Running and ready: %+v", p.Status.Phase, p.Status.Reason,
			p.Status.Message,
			p.Status.ContainerStatuses)
	}
	return nil
}

// IsReady reports whether a pod has the condition Ready.
func IsReady(p *v1.Pod) bool {
	return p != nil && slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
	})
}

// Gone checks that there are no such pods.
func Gone(names ...string) Check {
	return func(pods map[string]*v1.Pod) error {
		for _, name := range names {
			if p := pods[name]; p != nil {
				return fmt.Errorf("pod %s is still there, %s", name, p.Status.Phase)
			}
		}
		return nil
	}
}

// RunningContainers returns the start times of the containers that run, by id: a restart changes it.
func (n *Node) RunningContainers() map[string]int64 {
	n.T.Helper()
	started := map[string]int64{}
	for _, c := range n.containers(nil) {
		st, err := n.CRI.ContainerStatus(n.T.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: c.Id})
		if status.Code(err) == codes.NotFound {
			continue // it was removed meanwhile
		}
		Must(n.T, err)
		started[c.Id] = st.Status.StartedAt
	}
	return started
}

// ContainersOf returns the ids of the containers of a pod that run.
func (n *Node) ContainersOf(pod string) []string {
	n.T.Helper()
	var ids []string
	for _, c := range n.containers(map[string]string{"io.kubernetes.pod.name": pod}) {
		ids = append(ids, c.Id)
	}
	return ids
}

func (n *Node) containers(labels map[string]string) []*runtimeapi.Container {
	n.T.Helper()
	list, err := n.CRI.ListContainers(n.T.Context(), &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{
			State:         &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
			LabelSelector: labels,
		},
	})
	Must(n.T, err)
	return list.Containers
}

// ExecIn runs a command in the first running container of a pod, and returns what it prints.
func (n *Node) ExecIn(pod string, command ...string) (string, error) {
	n.T.Helper()
	ids := n.ContainersOf(pod)
	if len(ids) == 0 {
		return "", fmt.Errorf("pod %s runs no container", pod)
	}
	out, err := n.CRI.ExecSync(n.T.Context(), &runtimeapi.ExecSyncRequest{
		ContainerId: ids[0],
		Cmd:         command,
		Timeout:     int64(wait.Max().Seconds()),
	})
	if err != nil {
		return "", err
	}
	return string(out.Stdout) + string(out.Stderr), nil
}

// Command runs a command of edgecore that must succeed, and returns what it prints.
func (n *Node) Command(args ...string) string {
	n.T.Helper()
	out, err := n.Run(n.T.Context(), args...)
	if err != nil {
		n.T.Fatalf("edgecore %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// Logs returns what a container of a pod has written, as `edgecore logs` prints it.
func (n *Node) Logs(pod *v1.Pod, container string) string {
	n.T.Helper()
	return n.Command("logs", pod.Name, "-c", container)
}

// Metric returns the value of a line of /metrics, and "" if there is no such line. name includes the labels.
func (n *Node) Metric(name string) string {
	n.T.Helper()
	text, err := n.Get(n.T.Context(), "/metrics")
	Must(n.T, err)
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// Events returns the agent's events with a reason, each as "NAME: MESSAGE".
func (n *Node) Events(reason string) []string {
	n.T.Helper()
	text, err := n.Get(n.T.Context(), "/events")
	Must(n.T, err)
	var list v1.EventList
	Must(n.T, json.Unmarshal([]byte(text), &list))
	var out []string
	for _, e := range list.Items {
		if e.Reason == reason {
			out = append(out, e.InvolvedObject.Name+": "+e.Message)
		}
	}
	return out
}

// Condition waits until the agent reports one of its health conditions, or no longer reports it.
func (n *Node) Condition(code health.Code, want bool) {
	n.T.Helper()
	wait.Until(n.T, fmt.Sprintf("condition %s to be %v", code, want), func() error {
		text, err := n.Get(n.T.Context(), "/status")
		if err != nil {
			return err
		}
		var info struct {
			Conditions []health.Condition `json:"conditions"`
		}
		if err := json.Unmarshal([]byte(text), &info); err != nil {
			return err
		}
		has := slices.ContainsFunc(info.Conditions, func(c health.Condition) bool { return c.Code == code })
		if has != want {
			return fmt.Errorf("conditions are %+v", info.Conditions)
		}
		return nil
	})
}

// NothingLeft waits until no folder, mount, log, cgroup or sandbox of any pod is left. The runtime's own leftovers
// (processes, network namespaces) are checked when it stops.
func (n *Node) NothingLeft() {
	n.T.Helper()
	wait.Until(n.T, "pods to leave nothing behind", func() error {
		for _, dir := range []string{filepath.Join(n.Dir, "root", "pods"), n.PodLogs()} {
			if err := emptyDir(dir); err != nil {
				return err
			}
		}
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			return err
		}
		if i := strings.Index(string(mounts), filepath.Join(n.Dir, "root")+"/"); i >= 0 {
			line, _, _ := strings.Cut(string(mounts[i:]), "\n")
			return fmt.Errorf("still mounted: %s", line)
		}
		groups, err := n.Containerd.PodCgroups()
		if err != nil {
			return err
		}
		if len(groups) > 0 {
			return fmt.Errorf("cgroups are left: %v", groups)
		}
		boxes, err := n.CRI.ListPodSandbox(context.WithoutCancel(n.T.Context()), &runtimeapi.ListPodSandboxRequest{})
		if err == nil && len(boxes.Items) > 0 {
			err = fmt.Errorf("%d sandboxes are left", len(boxes.Items))
		}
		return err
	})
}

// emptyDir checks that a folder is empty or not there, and names all that is in it otherwise.
func emptyDir(dir string) error {
	var left []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if path != dir && err == nil {
			left = append(left, path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // it goes while we look
		}
		return err
	})
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("left behind: %s", strings.Join(left, ", "))
	}
	return err
}

// CheckLog fails the test if a program has panicked, or raced where it was built with the race detector.
func CheckLog(t testing.TB, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"DATA RACE", "panic", "goroutine 1 ["} {
		if i := strings.Index(string(data), bad); i >= 0 {
			t.Errorf("%s contains %q:\n%.3000s", path, bad, data[max(0, i-200):])
		}
	}
}

// Must fails the test on an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Forever is a shell script that runs until it gets a SIGTERM, and then exits with 0 at once.
const Forever = "trap 'exit 0' TERM; while true; do sleep 1 & wait; done"

// Pod is the manifest of a pod with one container, "main", of the demo image that runs a shell script. Each of spec is
// more YAML of the pod's spec, indented by two spaces.
func Pod(name, script string, spec ...string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
%s
  containers:
  - name: main
    image: edgecore.local/demo:1
    imagePullPolicy: IfNotPresent
    command: [sh, -c, %q]
`, name, strings.Join(spec, "\n"), script)
}

// merged returns the keys of both maps; those of more win.
func merged(base, more map[string]any) map[string]any {
	out := maps.Clone(base)
	maps.Copy(out, more)
	return out
}
