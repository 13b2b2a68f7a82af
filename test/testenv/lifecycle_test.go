package testenv_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/cri"
	"github.com/edgecore-io/edgecore/test/bench/floor"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

func pods(t *testing.T, instance *containerd.Instance) *floor.Client {
	return &floor.Client{
		CRI: testenv.Dial(t, instance), CgroupParent: instance.CgroupRoot() + "/floor", LogDir: t.TempDir(), Image: images.Demo,
		Command: []string{"httpd", "-f", "-p", "80", "-h", "/www"},
	}
}

func create(t *testing.T, c *floor.Client, name string, ports ...floor.Port) *floor.Pod {
	t.Helper()
	pod, err := c.Create(t.Context(), name, ports...)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// containerState asks until the runtime has an answer: one that has just been started may not yet.
func containerState(t *testing.T, client *cri.Client, id string) (state runtimeapi.ContainerState) {
	t.Helper()
	testenv.Poll(t, 20*time.Second, func() error {
		status, err := client.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
		state = status.GetStatus().GetState()
		return err
	})
	return state
}

func freePort(t *testing.T) int32 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return int32(l.Addr().(*net.TCPAddr).Port)
}

// Two instances run pods on one machine; the removal of the first, whatever the state it is in,
// leaves the second as it was. That nothing is left of either is checked when the test ends.
func TestInstancesDoNotMeet(t *testing.T) {
	first := testenv.StartContainerd(t, testenv.Options{})
	second := testenv.StartContainerd(t, testenv.Options{})
	if first.Subnet.Overlaps(second.Subnet) {
		t.Fatalf("subnets %v and %v overlap", first.Subnet, second.Subnet)
	}
	port := freePort(t)
	create(t, pods(t, first), "web", floor.Port{Container: 80, Host: freePort(t)})
	survivor := pods(t, second)
	pod := create(t, survivor, "web", floor.Port{Container: 80, Host: port})

	// Without its daemon the first one can only be removed by force.
	if err := first.Kill9(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.CheckNoLeaks(t, first)

	if got := containerState(t, survivor.CRI, pod.Container); got != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("container of the second instance is %v after the removal of the first", got)
	}
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	testenv.Poll(t, 10*time.Second, func() error {
		answer, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
		if err != nil {
			return err
		}
		page, err := io.ReadAll(answer.Body)
		if err := errors.Join(err, answer.Body.Close()); err != nil || !strings.Contains(string(page), "edgecore demo") {
			return fmt.Errorf("host port of the second instance: %q, %w", page, err)
		}
		return nil
	})
}

func TestRestartsKeepPods(t *testing.T) {
	instance := testenv.StartContainerd(t, testenv.Options{})
	c := pods(t, instance)
	pod := create(t, c, "web")

	if err := instance.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := containerState(t, c.CRI, pod.Container); got != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("after Restart the container is %v", got)
	}
	if err := instance.Kill9(t.Context()); err != nil {
		t.Fatal(err)
	}
	if instance.Running() {
		t.Error("after Kill9 the daemon runs")
	}
	if err := instance.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := containerState(t, c.CRI, pod.Container); got != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("after Kill9 and Run the container is %v", got)
	}

	if err := instance.Pause(); err != nil {
		t.Fatal(err)
	}
	hung, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := c.CRI.Version(hung, &runtimeapi.VersionRequest{}); err == nil {
		t.Error("a paused daemon answers")
	}
	if err := instance.Resume(); err != nil {
		t.Fatal(err)
	}
	if got := containerState(t, c.CRI, pod.Container); got != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("after Pause and Resume the container is %v", got)
	}
}

func TestPowerCut(t *testing.T) {
	instance := testenv.StartContainerd(t, testenv.Options{})
	c := pods(t, instance)
	pod := create(t, c, "web")

	if err := instance.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := instance.PowerOn(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := containerState(t, c.CRI, pod.Container); got == runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Error("the container survived a power cut")
	}
	create(t, c, "after")

	if err := instance.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := instance.Forget(); err != nil {
		t.Fatal(err)
	}
	if err := instance.PowerOn(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := instance.LoadImages(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, err := c.CRI.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(list.GetItems()) != 0 {
		t.Errorf("after Forget the runtime lists %v, %v; want no pods", list.GetItems(), err)
	}
	create(t, c, "anew")
}

// An instance whose owner was killed is removed by the next start of any other.
func TestSweep(t *testing.T) {
	if name := os.Getenv("TESTENV_ORPHAN"); name != "" {
		orphan(t, name)
	}
	name := fmt.Sprintf("ec-%08x", os.Getpid())
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSweep$")
	cmd.Env = append(os.Environ(), "TESTENV_ORPHAN="+name)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 3 {
		t.Fatalf("the orphan's owner: %v\n%s", err, out)
	}
	left, err := containerd.Attach(name)
	if err != nil || !left.Running() {
		t.Fatalf("Attach(%s) = %v: want the orphan, running", name, err)
	}
	if err := containerd.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.CheckNoLeaks(t, left)
}

// orphan starts an instance with a pod and ends without stopping it.
func orphan(t *testing.T, name string) {
	instance, err := containerd.Start(t.Context(), containerd.Options{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	if err := instance.LoadImages(t.Context()); err != nil {
		t.Fatal(err)
	}
	create(t, pods(t, instance), "web", floor.Port{Container: 80, Host: freePort(t)})
	os.Exit(3)
}

// containerd 2.x runs pods here too, and has what the machine's containerd lacks: events, and its
// cgroup driver on request.
func TestContainerd2(t *testing.T) {
	instance := testenv.StartContainerd(t, testenv.Options{Containerd2: true})
	c := pods(t, instance)
	config, err := c.CRI.RuntimeConfig(t.Context(), &runtimeapi.RuntimeConfigRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got := config.GetLinux().GetCgroupDriver(); got != runtimeapi.CgroupDriver_CGROUPFS {
		t.Errorf("cgroup driver = %v, want cgroupfs", got)
	}
	events, err := c.CRI.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	pod := create(t, c, "web", floor.Port{Container: 80, Host: freePort(t)})
	for {
		event, err := events.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if event.GetContainerId() == pod.Container && event.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT {
			break
		}
	}
	if err := c.Delete(t.Context(), pod, 0); err != nil {
		t.Fatal(err)
	}
}
