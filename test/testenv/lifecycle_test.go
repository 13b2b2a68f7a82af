package testenv_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/test/bench/floor"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

func pods(t *testing.T, instance *containerd.Instance) *floor.Client {
	return &floor.Client{
		CRI:          testenv.Dial(t, instance),
		CgroupParent: instance.CgroupRoot() + "/floor",
		LogDir:       t.TempDir(),
		Image:        images.Demo,
		Command:      []string{"httpd", "-f", "-p", "80", "-h", "/www"},
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
	wait.Until(t, "the state of container "+id, func() error {
		status, err := client.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
		state = status.GetStatus().GetState()
		return err
	})
	return state
}

func freePort(t *testing.T) int32 {
	t.Helper()
	port, err := daemon.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return int32(port)
}

// Two instances run pods on one machine; the removal of the first, whatever the state it is in,
// leaves the second as it was. That nothing is left of either is checked when the test ends.
func TestInstancesDoNotMeet(t *testing.T) {
	t.Parallel()
	first := testenv.StartContainerd(t, testenv.Options{})
	second := testenv.StartContainerd(t, testenv.Options{})
	if first.Subnet.Overlaps(second.Subnet) {
		t.Fatalf("subnets %v and %v overlap, want them not to", first.Subnet, second.Subnet)
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
		t.Errorf("container of the second instance is %v after the removal of the first, want it running", got)
	}
	// then it asks again
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	wait.Until(t, "the page of the second instance", func() error {
		answer, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
		if err != nil {
			return err
		}
		page, err := io.ReadAll(answer.Body)
		if err := errors.Join(err, answer.Body.Close()); err != nil ||
			!strings.Contains(string(page), "edgecore demo") {
			return fmt.Errorf("host port of the second instance: %q, %w", page, err)
		}
		return nil
	})
}

func TestRestartsKeepPods(t *testing.T) {
	t.Parallel()
	instance := testenv.StartContainerd(t, testenv.Options{})
	c := pods(t, instance)
	pod := create(t, c, "web")

	if err := instance.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := containerState(t, c.CRI, pod.Container); got != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("after Restart the container is %v, want it running", got)
	}
	if err := instance.Kill9(t.Context()); err != nil {
		t.Fatal(err)
	}
	if instance.Running() {
		t.Error("Running() after Kill9 = true, want false")
	}
	if err := instance.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := containerState(t, c.CRI, pod.Container); got != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("after Kill9 and Run the container is %v, want it running", got)
	}

	if err := instance.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	hung, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond) // however long: all its threads are stopped
	defer cancel()
	if _, err := c.CRI.Version(hung, &runtimeapi.VersionRequest{}); err == nil {
		t.Error("Version of a paused daemon = nil, want an error")
	}
	if err := instance.Resume(); err != nil {
		t.Fatal(err)
	}
	if got := containerState(t, c.CRI, pod.Container); got != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("after Pause and Resume the container is %v, want it running", got)
	}
}

func TestPowerCut(t *testing.T) {
	t.Parallel()
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
		t.Errorf("container after a power cut = %v, want it not running", got)
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
	cmd.Env = append(os.Environ(), "TESTENV_ORPHAN="+name, "TMPDIR="+t.TempDir()) // it leaves its files
	stdin, stdout := pipes(t, cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var output strings.Builder
	for lines := bufio.NewReader(stdout); !strings.HasSuffix(output.String(), orphanReady); {
		line, err := lines.ReadString('\n')
		output.WriteString(line)
		if err != nil {
			t.Fatalf("read from the orphan's owner: %v, want no error; it ended: %v\n%s", err, cmd.Wait(), &output)
		}
	}
	// Nobody else sweeps it before it has been looked at.
	record, err := os.Open(filepath.Join("/run", name, "instance.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer record.Close()
	if err := syscall.Flock(int(record.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 3 {
		t.Fatalf("the orphan's owner: %v, want exit code 3", err)
	}
	left, err := containerd.Attach(name)
	if err != nil || !left.Running() {
		t.Fatalf("Attach(%s) = %v: want the orphan, running", name, err)
	}
	// While another process removes the orphan, Sweep waits.
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := containerd.Sweep(ctx); err == nil || !left.Running() {
		t.Errorf("Sweep of an orphan that is locked = %v, and it runs: %v, want an error and that it runs", err,
			left.Running())
	}
	if err := record.Close(); err != nil {
		t.Fatal(err)
	}
	if err := containerd.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.CheckNoLeaks(t, left)
}

// orphanReady is what an orphan's owner says before it waits for its end.
const orphanReady = "the orphan runs\n"

// pipes are what a program reads, and all that it says.
func pipes(t *testing.T, cmd *exec.Cmd) (io.WriteCloser, io.Reader) {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	return stdin, stdout
}

// orphan starts an instance with a pod, and ends at the end of its input without stopping it.
func orphan(t *testing.T, name string) {
	instance, err := containerd.Start(t.Context(), containerd.Options{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	if err := instance.LoadImages(t.Context()); err != nil {
		t.Fatal(err)
	}
	create(t, pods(t, instance), "web", floor.Port{Container: 80, Host: freePort(t)})
	fmt.Print(orphanReady)
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(3)
}

// containerd 2.x runs pods here too, and has what the machine's containerd lacks: events, and its
// cgroup driver on request.
func TestContainerd2(t *testing.T) {
	t.Parallel()
	instance := testenv.StartContainerd(t, testenv.Options{Containerd2: true})
	c := pods(t, instance)
	config, err := c.CRI.RuntimeConfig(t.Context(), &runtimeapi.RuntimeConfigRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got := config.GetLinux().GetCgroupDriver(); got != runtimeapi.CgroupDriver_CGROUPFS {
		t.Errorf("cgroup driver = %v, want cgroupfs", got)
	}
	told := starts(t, c.CRI)
	// The first may start before the runtime knows of the listener: pods start until an event comes.
	started := map[string]bool{}
	n := 0
	wait.Until(t, "an event of the start of a container", func() error {
		pod := create(t, c, fmt.Sprintf("web-%d", n), floor.Port{Container: 80, Host: freePort(t)})
		n++
		started[pod.Container] = true
		if _, err := c.Delete(t.Context(), pod, 0); err != nil {
			return daemon.Fatal(err)
		}
		for {
			select {
			case id := <-told:
				if started[id] {
					return nil
				}
			default:
				return fmt.Errorf("none came of %d containers", n)
			}
		}
	})
}

// starts tells of the containers that start, until the test ends.
func starts(t *testing.T, client *cri.Client) <-chan string {
	t.Helper()
	events, err := client.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan string, 100)
	go func() {
		for {
			event, err := events.Recv()
			if err != nil {
				return
			}
			if event.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT {
				told <- event.GetContainerId() // there is room for all
			}
		}
	}()
	return told
}
