package edge

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// killMain kills the first container's init process behind everybody's back.
func killMain(t *testing.T, n *node) {
	t.Helper()
	for id := range n.RunningContainers() {
		st, err := n.CRI.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{
			ContainerId: id, Verbose: true,
		})
		env.Must(t, err)
		var info struct{ Pid int }
		if err := json.Unmarshal([]byte(st.Info["info"]), &info); err != nil || info.Pid <= 1 {
			t.Fatalf("PID of %s = %d, %v, want more than 1", id, info.Pid, err)
		}
		env.Must(t, syscall.Kill(info.Pid, syscall.SIGKILL))
		return
	}
	t.Fatal("0 containers run, want at least 1")
}

// reboot loses power: every process and the runtime's state are gone; the disk stays.
func reboot(t *testing.T, n *node) {
	t.Helper()
	n.kill()
	env.Must(t, n.Containerd.PowerOff(t.Context()))
	env.Must(t, n.Containerd.PowerOn(t.Context()))
	n.start()
	// At first the agent shows what it knew before the reboot.
	n.Until("statuses are of this boot", func(pods map[string]*v1.Pod) error {
		lives := n.RunningContainers()
		if len(pods) == 0 {
			return fmt.Errorf("the store is not read yet")
		}
		for name, p := range pods {
			for _, c := range p.Status.ContainerStatuses {
				if id := strings.TrimPrefix(c.ContainerID, "containerd://"); c.State.Running != nil && lives[id] == 0 {
					return fmt.Errorf("%s: container %s does not run", name, id)
				}
			}
		}
		return nil
	})
}

// tenPods starts a node with ten pods.
func tenPods(t *testing.T) *node {
	t.Helper()
	n := newNode(t, env.NodeOptions{})
	for _, name := range names(10) {
		n.Manifest(name, env.Pod(name, env.Forever))
	}
	n.Running(names(10)...)
	return n
}

// TestKill9Adopts: an agent that was killed adopts all pods, and touches no container. How long that takes is measured
// in test/bench.
func TestKill9Adopts(t *testing.T) {
	t.Parallel()
	n := tenPods(t)
	before := n.RunningContainers()
	for range 3 {
		n.kill()
		n.start()
		n.Running(names(10)...)
	}
	// The agent is in charge again: what it does now, it does with what it knows of the others.
	n.Manifest("new", env.Pod("new", env.Forever))
	for name, p := range n.Running(append(names(10), "new")...) {
		if got := p.Status.ContainerStatuses[0].RestartCount; got != 0 {
			t.Errorf("pod %s has %d restarts, want 0", name, got)
		}
	}
	n.untouched(before)
	if got, want := len(n.RunningContainers()), len(before)+1; got != want {
		t.Errorf("%d containers run, want %d", got, want)
	}
}

// TestEverythingRemovedBehindItsBack: all sandboxes and containers are gone, and come back.
func TestEverythingRemovedBehindItsBack(t *testing.T) {
	t.Parallel()
	n := tenPods(t)
	before := n.RunningContainers()
	testenv.RemoveSandboxes(t, n.CRI)
	n.Until("all are back", func(pods map[string]*v1.Pod) error {
		if err := env.Running(names(10)...)(pods); err != nil {
			return err
		}
		lives := n.RunningContainers()
		for id := range lives {
			if before[id] != 0 {
				return fmt.Errorf("%s is an old container", id)
			}
		}
		if len(lives) != 10 {
			return fmt.Errorf("%d containers run", len(lives))
		}
		return nil
	})
}

// TestReboot: the device starts again with no cloud, and so do its pods; restarts are counted on.
func TestReboot(t *testing.T) {
	t.Parallel()
	n := tenPods(t)
	reboot(t, n)
	pods := n.Until("all are back", func(pods map[string]*v1.Pod) error {
		if err := env.Running(names(10)...)(pods); err != nil {
			return err
		}
		for name, p := range pods { // until the runtime was asked, a pod has its previous status
			if p.Status.ContainerStatuses[0].RestartCount == 0 {
				return fmt.Errorf("%s was not started again", name)
			}
		}
		return nil
	})
	for name, p := range pods {
		if got := p.Status.ContainerStatuses[0].RestartCount; got != 1 {
			t.Errorf("%s: restart count %d, want 1", name, got)
		}
	}
}

// TestRuntimeRestart: containerd ends and comes back under the agent; no container is touched.
func TestRuntimeRestart(t *testing.T) {
	t.Parallel()
	n := tenPods(t)
	before := n.RunningContainers()
	env.Must(t, n.Containerd.Terminate(t.Context()))
	wait.Until(t, "RuntimeDown", func() error {
		out, err := n.Run(t.Context(), "status")
		if err == nil || !strings.Contains(out, "RuntimeDown") {
			return fmt.Errorf("status does not say that the runtime is down: %s", out)
		}
		return nil
	})
	env.Must(t, n.Containerd.Run(t.Context()))
	wait.Until(t, "the agent to be well again", func() error {
		if out, err := n.Run(t.Context(), "status"); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	n.Running(names(10)...)
	n.same(before)
	// It is in charge again.
	n.Manifest("new", env.Pod("new", env.Forever))
	n.Running("new")
}

// TestHangingRuntime: a runtime that does not answer holds up nothing but itself.
func TestHangingRuntime(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{Agent: agent.Options{Kubelet: map[string]any{"runtimeRequestTimeout": "2s"}}})
	n.Manifest("a", env.Pod("a", env.Forever))
	n.Running("a")
	before := n.RunningContainers()
	env.Must(t, n.Containerd.Pause(t.Context()))
	n.Manifest("b", env.Pod("b", env.Forever))
	wait.Until(t, "a failing /healthz, and pod b", func() error {
		if out, err := n.Get(t.Context(), "/healthz"); err == nil {
			return fmt.Errorf("healthz says %s", out)
		}
		pods, err := n.Pods(t.Context())
		if err == nil && pods["b"] == nil {
			err = fmt.Errorf("pod b is not listed")
		}
		return err
	})
	env.Must(t, n.Containerd.Resume())
	n.Running("a", "b")
	n.untouched(before)
}

// TestStrangersAndOrphans: pods of an unchanged spec are adopted, no matter who made them; what nobody wants is
// stopped after its grace; what is no pod is left alone.
func TestStrangersAndOrphans(t *testing.T) {
	t.Parallel()
	n := newNode(t, env.NodeOptions{})
	n.Manifest("a", env.Pod("a", env.Forever))
	n.Manifest("b", env.Pod("b", env.Forever))
	n.Running("a", "b")
	n.kill()
	// While the agent is down: b is no longer wanted, c is changed, and someone makes a sandbox of their own.
	n.Remove("b")
	stranger, err := n.CRI.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{
		Config: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "stranger", Namespace: "x", Uid: "x"},
			Linux:    &runtimeapi.LinuxPodSandboxConfig{CgroupParent: n.Containerd.CgroupParent("stranger")},
		},
	})
	env.Must(t, err)
	before := n.RunningContainers()
	n.start()
	n.Running("a")
	wait.Until(t, "pod b to be stopped", func() error {
		if left := n.sandboxesOf("b"); len(left) > 0 {
			return fmt.Errorf("b is still there")
		}
		return nil
	})
	for id := range n.RunningContainers() {
		if before[id] == 0 {
			t.Errorf("container %s runs, want only those of before: %v", id, before)
		}
	}
	st, err := n.CRI.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{
		PodSandboxId: stranger.PodSandboxId,
	})
	if err != nil || st.Status.State != runtimeapi.PodSandboxState_SANDBOX_READY {
		t.Errorf("the sandbox of another program is %v (%v), want READY", st, err)
	}
}
