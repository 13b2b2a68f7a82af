package gc

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestClear: dead containers go as the configuration says, and whatever earlier pods left behind goes when the agent
// starts.
func TestClear(t *testing.T) {
	t.Parallel()
	n := &node{Node: env.StartNode(t, built, env.NodeOptions{Agent: agent.Options{
		Edged:   map[string]any{"maxPerPodContainerCount": 0},
		Kubelet: map[string]any{"crashLoopBackOff": map[string]any{"maxContainerRestartPeriod": "1s"}},
	}})}
	t.Run("dead containers", func(t *testing.T) { deadContainers(t, n.with(t)) })
	t.Run("what pods left behind", func(t *testing.T) { leftBehind(t, n.with(t)) })
}

const scratch = `    volumeMounts: [{name: scratch, mountPath: /scratch}, {name: memory, mountPath: /memory}]
  volumes:
  - {name: scratch, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}`

// containers are those of a pod, dead ones too, by their ids.
func (n *node) containers(uid string) map[string]runtimeapi.ContainerState {
	n.T.Helper()
	list, err := n.CRI.ListContainers(n.T.Context(), &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{
			LabelSelector: map[string]string{"io.kubernetes.pod.uid": uid},
		},
	})
	env.Must(n.T, err)
	states := map[string]runtimeapi.ContainerState{}
	for _, c := range list.Containers {
		states[c.Id] = c.State
	}
	return states
}

// deadContainers: with maxPerPodContainerCount 0 none is kept beside the one that runs, and what happened stays in the
// status; the newest attempt of a pod that has ended goes, too.
func deadContainers(t *testing.T, n *node) {
	n.Manifest("crashes", pod("crashes", images.Demo,
		"echo x >> /scratch/n; [ $(wc -l < /scratch/n) -gt 3 ] || exit 3; "+env.Forever, scratch))
	n.Manifest("ends", env.Pod("ends", "echo bye; exit 0", "  restartPolicy: Never"))
	var crashed, ended *v1.Pod
	n.Until("three crashes, and the other pod's end", func(pods map[string]*v1.Pod) error {
		if crashed = pods["crashes"]; crashed == nil || len(crashed.Status.ContainerStatuses) == 0 ||
			crashed.Status.ContainerStatuses[0].RestartCount < 3 {
			return fmt.Errorf("pod crashes has not crashed often enough: %+v", crashed)
		}
		if ended = pods["ends"]; ended == nil || ended.Status.Phase != v1.PodSucceeded {
			return fmt.Errorf("pod ends: %+v", ended)
		}
		return nil
	})
	n.Running("crashes")
	wait.Until(t, "dead containers to go", func() error {
		for uid, want := range map[string]int{string(crashed.UID): 1, string(ended.UID): 0} {
			if have := n.containers(uid); len(have) != want {
				return fmt.Errorf("pod %s has containers %v, want %d", uid, have, want)
			}
		}
		return nil
	})
	pods, err := n.Pods(t.Context())
	env.Must(t, err)
	st := pods["crashes"].Status.ContainerStatuses[0]
	if last := st.LastTerminationState.Terminated; st.RestartCount != 3 || last == nil || last.ExitCode != 3 {
		t.Errorf("status is %+v, want 3 restarts, the last after exit code 3", st)
	}
	if st := pods["ends"].Status; st.Phase != v1.PodSucceeded || st.ContainerStatuses[0].State.Terminated == nil {
		t.Errorf("status of the pod that ended is %+v, want Succeeded with a terminated container", st)
	}
	wait.Until(t, "logs of dead containers to go", func() error {
		logs, err := filepath.Glob(filepath.Join(n.PodLogs(), "default_crashes-*", "main", "*.log"))
		if err == nil && len(logs) != 1 {
			err = fmt.Errorf("there are %v, want one", logs)
		}
		return err
	})
	n.Remove("ends")
	n.Gone("ends")
}

// plant makes what a pod would have left behind that nobody remembers: a folder with a mount, logs, a cgroup, a link.
func plant(t *testing.T, n *node, like, uid string) (link string) {
	t.Helper()
	mounted := filepath.Join(n.Dir, "root", "pods", uid, "volumes", "kubernetes.io~empty-dir", "memory")
	logs := filepath.Join(n.PodLogs(), "default_planted_"+uid, "main")
	for _, dir := range []string{mounted, logs} {
		env.Must(t, os.MkdirAll(dir, 0o755))
	}
	env.Must(t, unix.Mount("tmpfs", mounted, "tmpfs", 0, "size=1m"))
	groups, err := n.Containerd.PodCgroups()
	env.Must(t, err)
	for _, g := range groups {
		if strings.Contains(filepath.Base(g), like) {
			env.Must(t, os.Mkdir(filepath.Join(filepath.Dir(g), strings.ReplaceAll(filepath.Base(g), like, uid)),
				0o755))
		}
	}
	link = filepath.Join("/var/log/containers", "planted_default_main-"+uid+".log")
	env.Must(t, os.Symlink(filepath.Join(n.PodLogs(), "default_vanished_"+uid, "main", "0.log"), link))
	t.Cleanup(func() {
		if err := os.Remove(link); err != nil && !os.IsNotExist(err) {
			t.Errorf("remove: %v, want nil or %v", err, os.ErrNotExist)
		}
	})
	return link
}

// leftBehind: pods whose containers someone took away, and pods that nobody has ever heard of, leave nothing behind; a
// pod that runs is not touched.
func leftBehind(t *testing.T, n *node) {
	n.Manifest("goes", pod("goes", images.Demo, env.Forever, scratch))
	goes := n.Running("goes")["goes"]
	stays := n.Running("crashes")["crashes"]
	lives := n.containers(string(stays.UID))
	const planted = "0a1b2c3d-0000-4000-8000-00000000c0de"
	env.Must(t, n.Kill9(t.Context()))
	n.Remove("goes")
	list, err := n.CRI.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{
			LabelSelector: map[string]string{"io.kubernetes.pod.uid": string(goes.UID)},
		},
	})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("sandboxes of pod goes: %v (%v), want one", list, err)
	}
	id := list.Items[0].Id
	_, err = n.CRI.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	env.Must(t, err)
	_, err = n.CRI.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	env.Must(t, err)
	link := plant(t, n, string(stays.UID), planted)
	for _, uid := range []string{string(goes.UID), planted} {
		if err := traces(n, uid); err == nil {
			t.Fatalf("traces(pod %s) before the agent starts = nil, want an error that names some", uid)
		}
	}
	env.Must(t, n.Start(t.Context()))
	wait.Until(t, "what pods left behind to go", func() error {
		for _, uid := range []string{string(goes.UID), planted} {
			if err := traces(n, uid); err != nil {
				return err
			}
		}
		if _, err := os.Lstat(link); !os.IsNotExist(err) {
			return fmt.Errorf("link %s is left: %v", link, err)
		}
		return nil
	})
	n.Running("crashes")
	for id := range lives {
		if n.containers(string(stays.UID))[id] != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("container %s of the pod that stays is %s, want running", id, n.containers(string(stays.UID))[id])
		}
	}
	if err := traces(n, string(stays.UID)); err == nil {
		t.Errorf("traces(pod %s, which stays) = nil, want an error that names some", stays.UID)
	}
}

// traces is an error that says what is left of a pod.
func traces(n *node, uid string) error {
	var found []string
	for _, pattern := range []string{filepath.Join(n.Dir, "root", "pods", uid), filepath.Join(n.PodLogs(), "*_"+uid)} {
		list, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		found = append(found, list...)
	}
	groups, err := n.Containerd.PodCgroups()
	if err != nil {
		return err
	}
	for _, g := range groups {
		// the latter where systemd makes them
		if strings.Contains(g, uid) || strings.Contains(g, strings.ReplaceAll(uid, "-", "_")) {
			found = append(found, g)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "/pods/"+uid) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	if len(found) > 0 {
		return fmt.Errorf("of pod %s is left: %s", uid, strings.Join(found, ", "))
	}
	return nil
}
