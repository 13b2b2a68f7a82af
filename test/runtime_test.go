// Package test holds tests of single packages that need a real runtime.
package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/containers/runtime"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// node is package runtime alone on a containerd, without the agent around it.
type node struct {
	*runtime.Runtime
	t          testing.TB
	client     *cri.Client
	socket     string
	cgroup     string
	logs, link string
}

func newNode(t testing.TB) *node {
	t.Helper()
	instance := testenv.StartContainerd(t, testenv.Options{})
	dir := t.TempDir()
	n := &node{
		t:      t,
		client: testenv.Dial(t, instance),
		socket: instance.Socket(),
		cgroup: instance.CgroupRoot(),
		logs:   filepath.Join(dir, "logs"),
		link:   filepath.Join(dir, "links"),
	}
	n.Runtime = runtime.New(runtime.Options{
		Client:           n.client,
		Images:           n,
		Inputs:           n,
		Recorder:         events.New("", nil),
		RootDir:          filepath.Join(dir, "root"),
		PodLogsDir:       n.logs,
		ContainerLogsDir: n.link,
		Resources: func(*v1.Pod, *v1.Container) *runtimeapi.LinuxContainerResources {
			return &runtimeapi.LinuxContainerResources{CpuShares: 2}
		},
		MaxBackoff: time.Millisecond, // its growth is shown in edged/containers/runtime
	})
	return n
}

func (*node) EnsureImage(
	_ context.Context, _ *v1.Pod, c *v1.Container, _ []v1.Secret, _ *runtimeapi.PodSandboxConfig,
) (string, *observed.Reason, time.Time) {
	return c.Image, nil, time.Time{}
}

func (n *node) Sandbox(_ context.Context, pod *v1.Pod) (runtime.SandboxInputs, error) {
	return runtime.SandboxInputs{
		Hostname: pod.Name, DNS: &runtimeapi.DNSConfig{}, CgroupParent: n.cgroup + "/pod" + string(pod.UID),
	}, nil
}

func (*node) Container(_ context.Context, _ *v1.Pod, c *v1.Container, _ []string) (runtime.ContainerInputs, error) {
	return runtime.ContainerInputs{Command: c.Command, Args: c.Args}, nil
}

// until syncs the pod and reads it, as the agent does, until it is as a check wants it.
func (n *node) until(pod *v1.Pod, check func(*observed.Pod) error) (last *observed.Pod) {
	n.t.Helper()
	wait.Until(n.t, "pod "+pod.Name, func() error {
		obs, err := n.GetPod(n.t.Context(), pod.UID, last)
		if err != nil {
			return err
		}
		res := n.SyncPod(n.t.Context(), runtime.SyncInput{Pod: pod, Observed: obs})
		if last, err = n.GetPod(n.t.Context(), pod.UID, obs); err != nil {
			return err
		}
		if err := check(last); err != nil {
			return errors.Join(err, res.Err)
		}
		return nil
	})
	return last
}

// runs checks that a container's attempt runs.
func runs(name string, attempt uint32) func(*observed.Pod) error {
	return func(obs *observed.Pod) error {
		if c := obs.Container(name); !c.Running() || c.Attempt != attempt {
			return fmt.Errorf("container %s: %+v, want attempt %d to run", name, c, attempt)
		}
		return nil
	}
}

func (n *node) end(pod *v1.Pod) {
	n.t.Helper()
	obs, err := n.GetPod(n.t.Context(), pod.UID, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	if err := n.KillPod(n.t.Context(), pod.UID, pod, obs, nil); err != nil {
		n.t.Error(err)
	}
	if err := n.RemovePod(n.t.Context(), obs); err != nil {
		n.t.Error(err)
	}
	if obs, err = n.GetPod(n.t.Context(), pod.UID, obs); err != nil || len(obs.Sandboxes)+len(obs.Containers) > 0 {
		n.t.Errorf("left of pod %s: %+v, %v, want nothing", pod.Name, obs, err)
	}
}

// web is a pod that serves a page after an init container that leaves a message.
func web(uid types.UID, hostPort int32) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:      "web",
			Namespace: "shop",
			UID:       uid,
			Labels:    map[string]string{"app": "web"},
		},
		Spec: v1.PodSpec{
			RestartPolicy: v1.RestartPolicyAlways, TerminationGracePeriodSeconds: ptr.To[int64](1),
			InitContainers: []v1.Container{{
				Name: "init", Image: images.Demo, Command: []string{"sh", "-c", "echo -n ready > /dev/termination-log"},
				TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: v1.TerminationMessageReadFile,
			}},
			Containers: []v1.Container{{
				Name: "main", Image: images.Demo, Command: []string{"httpd", "-f", "-p", "80", "-h", "/www"},
				Ports: []v1.ContainerPort{{ContainerPort: 80, HostPort: hostPort, Protocol: v1.ProtocolTCP}},
			}},
		},
	}
}

func freePort(t *testing.T) int32 {
	t.Helper()
	port, err := daemon.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return int32(port)
}

// served waits until the host port leads to the pod.
func served(t *testing.T, port int32) {
	t.Helper()
	// A connection that leads nowhere is given up soon, and made again.
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	wait.Until(t, fmt.Sprintf("host port %d to lead to the pod", port), func() error {
		answer, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
		if err != nil {
			return err
		}
		page, err := io.ReadAll(answer.Body)
		if err := errors.Join(err, answer.Body.Close()); err != nil ||
			!strings.Contains(string(page), "edgecore demo") {
			return fmt.Errorf("it serves %q (%w), want the demo page", page, err)
		}
		return nil
	})
}

// TestRuntime walks a pod through its life on a containerd.
func TestRuntime(t *testing.T) {
	n := newNode(t)
	for _, c := range []struct {
		name string
		test func(*testing.T, *node)
	}{
		{"names", names}, {"dead process and sandbox", deaths}, {"adoption", adoption}, {"reserved names", reserved},
		{"end of sidecars", sidecarsEnd}, {"a start that was cut off", cutStart},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			sub := *n
			sub.t = t
			c.test(t, &sub)
		})
	}
}

// names: what crictl and log collectors go by.
func names(t *testing.T, n *node) {
	pod := web("names-uid", 0)
	obs := n.until(pod, runs("main", 0))
	defer n.end(pod)
	main := obs.Container("main")
	resp, err := n.client.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: main.ID})
	if err != nil {
		t.Fatal(err)
	}
	st := resp.Status
	want := map[string]string{
		"io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.uid": "names-uid",
		"io.kubernetes.container.name": "main",
	}
	if diff := cmp.Diff(want, st.Labels); diff != "" {
		t.Errorf("labels mismatch (-want +got):\n%s", diff)
	}
	hash := fmt.Sprintf("%x", runtime.Hash(&pod.Spec.Containers[0]))
	if got := st.Annotations["io.kubernetes.container.hash"]; got != hash {
		t.Errorf("hash %q, want %q", got, hash)
	}
	log := filepath.Join(n.logs, "shop_web_names-uid", "main", "0.log")
	if st.LogPath != log {
		t.Errorf("log %s, want %s", st.LogPath, log)
	}
	if target, err := os.Readlink(filepath.Join(n.link, "web_shop_main-"+main.ID+".log")); err != nil || target != log {
		t.Errorf("the link leads to %q (%v), want %q", target, err, log)
	}
	if init := obs.Container("init"); init.Message != "ready" || init.ExitCode != 0 {
		t.Errorf("init ended with %d, %q; want 0, %q", init.ExitCode, init.Message, "ready")
	}
}

// deaths: a process that dies is started again beside the same sandbox; a sandbox that dies is replaced, and the
// host port leads to its successor.
func deaths(t *testing.T, n *node) {
	port := freePort(t)
	pod := web("deaths-uid", port)
	first := n.until(pod, runs("main", 0))
	defer n.end(pod)
	served(t, port)
	kill9(t, first.Container("main").PID)
	second := n.until(pod, runs("main", 1))
	if second.Sandbox().ID != first.Sandbox().ID {
		t.Errorf("the sandbox is %s after its container was restarted, want %s", second.Sandbox().ID,
			first.Sandbox().ID)
	}
	if c := second.Attempts("main"); len(c) != 2 || c[1].ExitCode != 137 || second.Container("main").RestartCount != 1 {
		t.Errorf("attempts %+v, want two, the dead one with exit code 137, and 1 restart", c)
	}
	kill9(t, second.Sandbox().PID)
	third := n.until(pod, runs("main", 2))
	if third.Sandbox().ID == first.Sandbox().ID || third.Sandbox().Attempt != 1 {
		t.Errorf("sandbox %+v, want another than %s with attempt 1", third.Sandbox(), first.Sandbox().ID)
	}
	served(t, port)
}

func kill9(t *testing.T, pid int) {
	t.Helper()
	if pid <= 1 {
		t.Fatalf("pid is %d, want more than 1", pid)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// bare makes what another agent with the kubelet's labels would have made.
func bare(
	t *testing.T, n *node, pod *v1.Pod, labels map[string]string,
) (sandbox *runtimeapi.PodSandboxConfig, id string) {
	t.Helper()
	sandbox = &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID)},
		Labels:       labels,
		DnsConfig:    &runtimeapi.DNSConfig{},
		LogDirectory: t.TempDir(),
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: n.cgroup + "/pod" + string(pod.UID), SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
			},
		},
	}
	resp, err := n.client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: sandbox})
	if err != nil {
		t.Fatal(err)
	}
	return sandbox, resp.PodSandboxId
}

func bareContainer(
	t *testing.T, n *node, config *runtimeapi.PodSandboxConfig, sandbox string, attempt uint32,
	labels, annotations map[string]string,
) string {
	t.Helper()
	resp, err := n.client.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox,
		SandboxConfig: config, Config: &runtimeapi.ContainerConfig{
			Metadata:    &runtimeapi.ContainerMetadata{Name: "main", Attempt: attempt},
			Image:       &runtimeapi.ImageSpec{Image: images.Demo},
			Command:     []string{"httpd", "-f", "-p", "80"},
			Labels:      labels,
			Annotations: annotations,
			LogPath:     "x.log",
			Linux: &runtimeapi.LinuxContainerConfig{
				Resources: &runtimeapi.LinuxContainerResources{CpuShares: 2},
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
					NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
				},
			},
		}})
	if err != nil {
		t.Fatal(err)
	}
	return resp.ContainerId
}

func podLabels(pod *v1.Pod) map[string]string {
	return map[string]string{"io.kubernetes.pod.name": pod.Name, "io.kubernetes.pod.namespace": pod.Namespace,
		"io.kubernetes.pod.uid": string(pod.UID)}
}

// adoption: a container that someone else started under the kubelet's labels and hash is kept.
func adoption(t *testing.T, n *node) {
	pod := web("adoption-uid", 0)
	pod.Spec.InitContainers = nil
	config, sandbox := bare(t, n, pod, podLabels(pod))
	labels := podLabels(pod)
	labels["io.kubernetes.container.name"] = "main"
	id := bareContainer(t, n, config, sandbox, 3, labels, map[string]string{
		"io.kubernetes.container.hash":         fmt.Sprintf("%x", runtime.Hash(&pod.Spec.Containers[0])),
		"io.kubernetes.container.restartCount": "3",
	})
	if _, err := n.client.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	defer n.end(pod)
	if obs := n.until(pod, runs("main", 3)); obs.Container("main").ID != id || obs.Sandbox().ID != sandbox ||
		len(obs.Containers) != 1 {
		t.Errorf("pod %+v, want container %s in sandbox %s alone", obs, id, sandbox)
	}
}

// cutStart: a container with a task that CRI knows nothing of, as a start leaves it that is cut off, goes with its pod.
func cutStart(t *testing.T, n *node) {
	pod := web("cut-uid", 0)
	labels := podLabels(pod)
	config, sandbox := bare(t, n, pod, labels)
	withName := maps.Clone(labels)
	withName["io.kubernetes.container.name"] = "main"
	id := bareContainer(t, n, config, sandbox, 0, withName, nil)
	start := exec.CommandContext(t.Context(), "ctr", "--address", n.socket, "-n", "k8s.io", "tasks", "start", "-d", id)
	if out, err := start.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", start, err, out)
	}
	_, err := n.client.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("the runtime removes the container with a task: %v, want code FailedPrecondition", err)
	}
	n.end(pod)
}

// reserved: a sandbox and a container without labels hold the names that the pod needs.
func reserved(t *testing.T, n *node) {
	pod := web("reserved-uid", 0)
	pod.Spec.InitContainers = nil
	_, stale := bare(t, n, pod, nil)
	obs := n.until(pod, runs("main", 0))
	defer n.end(pod)
	if obs.Sandbox().ID == stale {
		t.Errorf("the pod runs in sandbox %s, which has no labels; want one of its own", stale)
	}
	left := bareContainer(t, n, &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID)},
		LogDirectory: t.TempDir(),
	}, obs.Sandbox().ID, 1, nil, nil)
	kill9(t, obs.Container("main").PID)
	if after := n.until(pod, runs("main", 1)); after.Container("main").ID == left {
		t.Errorf("the pod runs container %s, which has no labels; want one of its own", left)
	}
}
