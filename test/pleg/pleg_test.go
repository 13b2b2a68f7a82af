// Package pleg shows on a real containerd how soon package pleg notices what happens there.
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

	"github.com/edgecore-io/edgecore/edged/cri"
	"github.com/edgecore-io/edgecore/edged/observed"
	"github.com/edgecore-io/edgecore/edged/pleg"
	"github.com/edgecore-io/edgecore/edged/runtime"
	"github.com/edgecore-io/edgecore/test/testenv"
	"github.com/edgecore-io/edgecore/test/testenv/images"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// inputs gives a pod the least that it runs with.
type inputs struct{ cgroup string }

func (inputs) EnsureImage(_ context.Context, _ *v1.Pod, c *v1.Container, _ []v1.Secret, _ *runtimeapi.PodSandboxConfig) (string, *observed.Reason, time.Time) {
	return c.Image, nil, time.Time{}
}

func (i inputs) Sandbox(_ context.Context, pod *v1.Pod) (runtime.SandboxInputs, error) {
	return runtime.SandboxInputs{Hostname: pod.Name, DNS: &runtimeapi.DNSConfig{}, CgroupParent: i.cgroup + "/pod" + string(pod.UID)}, nil
}

func (inputs) Container(_ context.Context, _ *v1.Pod, c *v1.Container, _ []string) (runtime.ContainerInputs, error) {
	return runtime.ContainerInputs{Command: c.Command}, nil
}

func (inputs) Eventf(*v1.Pod, string, string, string, ...any)                         {}
func (inputs) ContainerEventf(*v1.Pod, *v1.Container, string, string, string, ...any) {}

const (
	deaths = 10
	rounds = 5
	// soon is how long after twice the time that the runtime itself takes to know of a death the snapshot has it, at most, in
	// the median: a runtime that is behind is asked again after waits that double. Single ones take longer on a busy machine.
	soon = 100 * time.Millisecond
)

// TestDeathIsNoticedAtOnce kills the containers of ten pods one after another, and of ten more if the machine was busy; relists are too rare to help.
func TestDeathIsNoticedAtOnce(t *testing.T) {
	instance := testenv.StartContainerd(t, testenv.Options{})
	client := testenv.Dial(t, instance)
	in, dir := inputs{instance.CgroupRoot()}, t.TempDir()
	r := runtime.New(runtime.Options{
		Client: client, Images: in, Inputs: in, Recorder: in,
		RootDir: filepath.Join(dir, "root"), PodLogsDir: filepath.Join(dir, "logs"), ContainerLogsDir: filepath.Join(dir, "links"),
		Resources: func(*v1.Pod, *v1.Container) *runtimeapi.LinuxContainerResources {
			return &runtimeapi.LinuxContainerResources{CpuShares: 2}
		},
	})
	changed := make(chan types.UID, 1000)
	p := pleg.New(r, client, pleg.Options{OnChange: func(uid types.UID) { changed <- uid }, RelistMin: time.Hour, RelistMax: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	testenv.Poll(t, 30*time.Second, p.Healthy)
	var median time.Duration
	for round := range rounds { // one is enough: the machine may be busy with other things
		var took, beyond []time.Duration
		for i := range deaths {
			late, more := death(t, p, r, client, changed, types.UID(fmt.Sprint("1-", round, "-", i)))
			took, beyond = append(took, late), append(beyond, more)
		}
		t.Logf("deaths noticed after %v; after twice the time that the runtime took to know of them, %v", took, beyond)
		slices.Sort(beyond)
		if median = beyond[len(beyond)/2]; median <= soon {
			return
		}
	}
	t.Errorf("half of the deaths were noticed %v after twice the time that the runtime took to know of them, or later; want %v", median, soon)
}

// death kills the container of a new pod, and returns how long after that it was noticed, and how much of that is beyond twice
// the time that the runtime took to know of it.
func death(t *testing.T, p *pleg.PLEG, r *runtime.Runtime, client *cri.Client, changed <-chan types.UID, uid types.UID) (took, beyond time.Duration) {
	t.Helper()
	pod := sleeper(uid)
	start(t, p, r, pod)
	defer remove(t, r, pod)
	c := p.Get(uid).Container("c")
	if c.PID <= 1 {
		t.Fatalf("pod %s: pid %d", uid, c.PID)
	}
	began := time.Now()
	if err := syscall.Kill(c.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	floor := make(chan time.Duration, 1)
	go func() { floor <- known(t, client, c.ID, began) }()
	took = noticed(t, p, changed, uid, began)
	return took, took - 2*<-floor
}

func sleeper(uid types.UID) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p" + string(uid), Namespace: "n", UID: uid}, Spec: v1.PodSpec{
		RestartPolicy: v1.RestartPolicyNever, TerminationGracePeriodSeconds: ptr.To[int64](0), HostNetwork: true,
		Containers: []v1.Container{{Name: "c", Image: images.Demo, Command: []string{"sleep", "1000"}}},
	}}
}

// start syncs a pod until it runs.
func start(t *testing.T, p *pleg.PLEG, r *runtime.Runtime, pod *v1.Pod) {
	t.Helper()
	testenv.Poll(t, time.Minute, func() error {
		obs, err := p.Refresh(t.Context(), pod.UID)
		if err == nil && !obs.Container("c").Running() {
			err = fmt.Errorf("pod %s does not run: %v", pod.Name, r.SyncPod(t.Context(), runtime.Wish{Pod: pod, Observed: obs}).Err)
		}
		return err
	})
}

func remove(t *testing.T, r *runtime.Runtime, pod *v1.Pod) {
	obs, err := r.GetPod(t.Context(), pod.UID)
	if err != nil {
		t.Error(err)
		return
	}
	if err := r.KillPod(t.Context(), pod.UID, pod, obs, ptr.To[int64](0)); err != nil {
		t.Error(err)
	}
	if err := r.RemovePod(t.Context(), obs); err != nil {
		t.Error(err)
	}
}

// noticed waits until a change is told whose snapshot has the death of the pod's container.
func noticed(t *testing.T, p *pleg.PLEG, changed <-chan types.UID, uid types.UID, began time.Time) time.Duration {
	t.Helper()
	limit := time.After(10 * time.Second)
	for {
		select {
		case got := <-changed:
			if got == uid && p.Get(uid).Container("c").Exited() {
				return time.Since(began)
			}
		case <-limit:
			t.Fatalf("the death in pod %s was not noticed in 10 s", uid)
		}
	}
}

// known asks the runtime itself until it says that a container has exited.
func known(t *testing.T, client *cri.Client, id string, began time.Time) time.Duration {
	for {
		r, err := client.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
		took := time.Since(began)
		if err != nil {
			t.Error(err)
			return took
		}
		if r.Status.State == runtimeapi.ContainerState_CONTAINER_EXITED || took > 10*time.Second {
			return took
		}
		time.Sleep(2 * time.Millisecond)
	}
}
