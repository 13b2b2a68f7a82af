// Package pleg shows on a real containerd that package pleg notices what happens there by itself.
package pleg

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/containers/pleg"
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

// inputs gives a pod the least that it runs with.
type inputs struct{ cgroup string }

func (inputs) EnsureImage(
	_ context.Context, _ *v1.Pod, c *v1.Container, _ []v1.Secret, _ *runtimeapi.PodSandboxConfig,
) (string, *observed.Reason, time.Time) {
	return c.Image, nil, time.Time{}
}

func (i inputs) Sandbox(_ context.Context, pod *v1.Pod) (runtime.SandboxInputs, error) {
	return runtime.SandboxInputs{
		Hostname: pod.Name, DNS: &runtimeapi.DNSConfig{}, CgroupParent: i.cgroup + "/pod" + string(pod.UID),
	}, nil
}

func (inputs) Container(_ context.Context, _ *v1.Pod, c *v1.Container, _ []string) (runtime.ContainerInputs, error) {
	return runtime.ContainerInputs{Command: c.Command}, nil
}

// env is package pleg on a containerd, with relists that are too rare to notice anything.
type env struct {
	*pleg.PLEG
	t       testing.TB
	runtime *runtime.Runtime
	client  *cri.Client
	changed chan types.UID
}

func start(t testing.TB) *env {
	t.Helper()
	instance := testenv.StartContainerd(t, testenv.Options{})
	in, dir := inputs{instance.CgroupRoot()}, t.TempDir()
	e := &env{t: t, client: testenv.Dial(t, instance), changed: make(chan types.UID, 10000)}
	e.runtime = runtime.New(runtime.Options{
		Client: e.client, Images: in, Inputs: in, Recorder: events.New("", nil),
		RootDir:          filepath.Join(dir, "root"),
		PodLogsDir:       filepath.Join(dir, "logs"),
		ContainerLogsDir: filepath.Join(dir, "links"),
		Resources: func(*v1.Pod, *v1.Container) *runtimeapi.LinuxContainerResources {
			return &runtimeapi.LinuxContainerResources{CpuShares: 2}
		},
	})
	e.PLEG = pleg.New(e.runtime, e.client, pleg.Options{
		OnChange:  func(uid types.UID) { e.changed <- uid },
		RelistMin: 24 * time.Hour,
		RelistMax: 24 * time.Hour,
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	wait.Until(t, "the first list", e.Healthy)
	return e
}

// TestDeathIsNoticed kills the containers of pods one after another. Nothing but the death itself can make it known:
// relists are a day away. BenchmarkDeath measures how soon it is known.
func TestDeathIsNoticed(t *testing.T) {
	e := start(t)
	for i := range 3 {
		uid := types.UID(fmt.Sprint("1-", i))
		pod := sleeper(uid)
		e.kill(e.startPod(pod))
		e.noticed(uid)
		e.removePod(pod)
	}
}

// BenchmarkDeath measures how long after the death of a container its snapshot says so, beside how long the runtime
// itself takes to know: a runtime that is behind is asked again after waits that double. Both are medians.
func BenchmarkDeath(b *testing.B) {
	e := start(b)
	var noticed, known []time.Duration
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		uid := types.UID(fmt.Sprint("1-", i))
		pod := sleeper(uid)
		c := e.startPod(pod)
		b.StartTimer()
		began := time.Now()
		e.kill(c)
		floor := make(chan time.Duration, 1)
		go func() { floor <- e.known(c.ID, began) }()
		e.noticed(uid)
		noticed = append(noticed, time.Since(began))
		b.StopTimer()
		known = append(known, <-floor)
		e.removePod(pod)
		b.StartTimer()
	}
	b.ReportMetric(float64(median(noticed).Microseconds())/1000, "noticed-ms")
	b.ReportMetric(float64(median(known).Microseconds())/1000, "runtime-ms")
}

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

func sleeper(uid types.UID) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p" + string(uid), Namespace: "n", UID: uid}, Spec: v1.PodSpec{
		RestartPolicy: v1.RestartPolicyNever, TerminationGracePeriodSeconds: ptr.To[int64](0), HostNetwork: true,
		Containers: []v1.Container{{Name: "c", Image: images.Demo, Command: []string{"sleep", "1000"}}},
	}}
}

// startPod syncs a pod until it runs, and returns its container.
func (e *env) startPod(pod *v1.Pod) *observed.Container {
	e.t.Helper()
	wait.Until(e.t, "pod "+pod.Name, func() error {
		obs, err := e.Refresh(e.t.Context(), pod.UID)
		if err == nil && !obs.Container("c").Running() {
			res := e.runtime.SyncPod(e.t.Context(), runtime.SyncInput{Pod: pod, Observed: obs})
			err = fmt.Errorf("it does not run: %v", res.Err)
		}
		return err
	})
	return e.Get(pod.UID).Container("c")
}

// kill kills the process of a container.
func (e *env) kill(c *observed.Container) {
	e.t.Helper()
	if c.PID <= 1 {
		e.t.Fatalf("container %s has pid %d, want more than 1", c.ID, c.PID)
	}
	if err := syscall.Kill(c.PID, syscall.SIGKILL); err != nil {
		e.t.Fatal(err)
	}
}

func (e *env) removePod(pod *v1.Pod) {
	e.t.Helper()
	obs, err := e.runtime.GetPod(e.t.Context(), pod.UID, nil)
	if err != nil {
		e.t.Fatal(err)
	}
	if err := e.runtime.KillPod(e.t.Context(), pod.UID, pod, obs, ptr.To[int64](0)); err != nil {
		e.t.Error(err)
	}
	if err := e.runtime.RemovePod(e.t.Context(), obs); err != nil {
		e.t.Error(err)
	}
}

// noticed waits for a change whose snapshot has the death of the pod's container.
func (e *env) noticed(uid types.UID) {
	e.t.Helper()
	for {
		got := wait.Receive(e.t, "the death in pod "+string(uid), e.changed)
		if got == uid && e.Get(uid).Container("c").Exited() {
			return
		}
	}
}

// known asks the runtime itself until it says that a container has exited.
func (e *env) known(id string, began time.Time) (took time.Duration) {
	ctx := wait.Context(e.t)
	err := daemon.PollEvery(ctx, 2*time.Millisecond, func() error {
		r, err := e.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
		took = time.Since(began)
		if err == nil && r.Status.State != runtimeapi.ContainerState_CONTAINER_EXITED {
			err = fmt.Errorf("container %s is %s, want EXITED", id, r.Status.State)
		}
		return err
	})
	if err != nil {
		e.t.Error(err) // the caller's goroutine is not the test's
	}
	return took
}
