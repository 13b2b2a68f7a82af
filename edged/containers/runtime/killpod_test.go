package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// withHooks gives every container of a pod hooks that run a command of its name.
func withHooks(pod *v1.Pod, kinds ...string) {
	hook := func(kind, name string) *v1.LifecycleHandler {
		if !slices.Contains(kinds, kind) {
			return nil
		}
		return &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{kind, name}}}
	}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			list[i].Lifecycle = &v1.Lifecycle{
				PostStart: hook("postStart", list[i].Name), PreStop: hook("preStop", list[i].Name),
			}
		}
	}
}

// hooksRun returns the commands that were run in containers, in order.
func (g *fixture) hooksRun() []string {
	var out []string
	for _, c := range g.fake.Calls("ExecSync") {
		out = append(out, strings.Join(c.Request.(*runtimeapi.ExecSyncRequest).Cmd, " "))
	}
	return out
}

// stops returns the names of the containers that were stopped, and the seconds that each was given, in order.
func (g *fixture) stops(obs *observed.Pod) (names []string, seconds []int64) {
	for _, c := range g.fake.Calls("StopContainer") {
		req := c.Request.(*runtimeapi.StopContainerRequest)
		names, seconds = append(names, find(obs, req.ContainerId).Name), append(seconds, req.Timeout)
	}
	return names, seconds
}

// sidecarPod has two sidecars and two containers.
func sidecarPod() *v1.Pod {
	pod := testPod(v1.RestartPolicyAlways, 2, 2)
	for i := range pod.Spec.InitContainers {
		pod.Spec.InitContainers[i].RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
	}
	pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](20)
	return pod
}

// TestSidecarsEndLast: in reverse order after the containers, also those that are slow to end.
func TestSidecarsEndLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newDirectRig(t)
		pod := sidecarPod()
		withHooks(pod, "preStop")
		obs := g.syncUntilSteady(pod)
		g.fake.SetExec(func(_ context.Context, req *runtimeapi.ExecSyncRequest) (int32, error) {
			if req.Cmd[1] == "c0" { // it is the container's own time; the sidecars wait, and c1 does not
				time.Sleep(15 * time.Second)
			}
			return 0, nil
		})
		if err := g.KillPod(t.Context(), pod.UID, pod, obs, nil); err != nil {
			t.Fatal(err)
		}
		names, _ := g.stops(obs)
		if diff := cmp.Diff([]string{"c1", "c0", "i1", "i0"}, names); diff != "" {
			t.Errorf("order (-want +got)\n%s", diff)
		}
		hooks := g.hooksRun()
		slices.Sort(hooks)
		if diff := cmp.Diff([]string{"preStop c0", "preStop c1", "preStop i0", "preStop i1"}, hooks); diff != "" {
			t.Errorf("hooks (-want +got)\n%s", diff)
		}
	})
}

// TestSidecarsShareTheGrace: what a container uses up is missing to the sidecars, but for a little that each gets.
func TestSidecarsShareTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newDirectRig(t)
		pod := sidecarPod()
		pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](10)
		obs := g.syncUntilSteady(pod)
		for _, c := range obs.Containers {
			g.fake.SetDeaf(c.ID)
		}
		began := time.Now()
		if err := g.KillPod(t.Context(), pod.UID, pod, obs, nil); err != nil {
			t.Fatal(err)
		}
		// 10 s for the containers; both sidecars end at once 2 s later.
		if took := time.Since(began); took != 12*time.Second {
			t.Errorf("the pod ended after %v of the simulated clock, want 12s", took)
		}
		_, seconds := g.stops(obs)
		if want := []int64{10, 10, 2, 2}; !slices.Equal(seconds, want) {
			t.Errorf("c0, c1, i1 and i0 had %v s to stop, want %v", seconds, want)
		}
	})
}

// TestGraceInWholeSeconds: of the time that a hook and the containers before took, whole seconds are counted, and the
// runtime is asked once, within a time that it can count.
func TestGraceInWholeSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newDirectRig(t)
		pod := sidecarPod()
		withHooks(pod, "preStop")
		obs := g.syncUntilSteady(pod)
		g.fake.SetExec(func(_ context.Context, req *runtimeapi.ExecSyncRequest) (int32, error) {
			if req.Cmd[1] == "c0" || req.Cmd[1] == "i0" {
				time.Sleep(1700 * time.Millisecond)
			}
			return 0, nil
		})
		if err := g.KillPod(t.Context(), pod.UID, pod, obs, nil); err != nil {
			t.Fatal(err)
		}
		names, seconds := g.stops(obs)
		wantNames, wantSeconds := []string{"c1", "c0", "i1", "i0"}, []int64{20, 19, 19, 19}
		if !slices.Equal(names, wantNames) || !slices.Equal(seconds, wantSeconds) {
			t.Errorf("%v had %v s to stop, want %v and %v", names, seconds, wantNames, wantSeconds)
		}
	})
}

// TestContainerThatCannotBeStopped: its sidecars live on, and serve it, until it can.
func TestContainerThatCannotBeStopped(t *testing.T) {
	g := newRig(t)
	pod := sidecarPod()
	obs := g.syncUntilSteady(pod)
	g.fake.Fail("StopContainer", 1, status.Error(codes.Unknown, "stuck"))
	if err := g.KillPod(t.Context(), pod.UID, pod, obs, nil); err == nil {
		t.Fatal("KillPod with a container that cannot be stopped = nil, want an error")
	}
	obs = g.observe(pod)
	for _, name := range []string{"i0", "i1"} {
		if c := obs.Container(name); !c.Running() {
			t.Errorf("sidecar %s before the container's end = %+v, want it running", name, c)
		}
	}
	if err := g.KillPod(t.Context(), pod.UID, pod, obs, nil); err != nil {
		t.Fatal(err)
	}
	if obs := g.observe(pod); obs.ContainersAlive() {
		t.Errorf("containers after the second try = %+v, want none alive", obs.Containers)
	}
}

// TestPreStopIsCutShort: by a shorter grace period, after which it is not run again; and it is not run at all when
// nobody waits, or for an orphan that has none.
func TestPreStopIsCutShort(t *testing.T) {
	g := newRig(t)
	pod := testPod(v1.RestartPolicyAlways, 0, 1)
	withHooks(pod, "preStop")
	obs := g.syncUntilSteady(pod)
	running := make(chan struct{}, 1)
	g.fake.SetExec(func(ctx context.Context, _ *runtimeapi.ExecSyncRequest) (int32, error) {
		running <- struct{}{}
		<-ctx.Done()
		return 0, ctx.Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- g.KillPod(ctx, pod.UID, pod, obs, ptr.To[int64](600)) }()
	<-running
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("cut short: %v, want context.Canceled", err)
	}
	if c := g.observe(pod).Container("c0"); !c.Running() {
		t.Errorf("container after a call that was cancelled in its hook = %+v, want it running", c)
	}
	if err := g.KillPod(t.Context(), pod.UID, pod, obs, ptr.To[int64](5)); err != nil {
		t.Fatal(err)
	}
	if got := g.hooksRun(); len(got) != 1 {
		t.Errorf("hooks %q, want one", got)
	}
	if _, seconds := g.stops(obs); !slices.Equal(seconds, []int64{5}) {
		t.Errorf("it had %v s, want the shorter grace", seconds)
	}
	if err := g.RemovePod(t.Context(), g.observe(pod)); err != nil || len(g.preStopDone.done) > 0 {
		t.Errorf("remembered after its removal: %v, %v; want no error, none", g.preStopDone.done, err)
	}
}

// TestShortestGrace: a hook has a second and the container 2 s after it, however little is asked for.
func TestShortestGrace(t *testing.T) {
	deleted := func(grace int64) *v1.Pod {
		pod := testPod(v1.RestartPolicyAlways, 0, 1)
		pod.DeletionGracePeriodSeconds = ptr.To(grace)
		return pod
	}
	for name, c := range map[string]struct {
		pod   *v1.Pod
		grace *int64
	}{
		"deleted with 0": {deleted(0), nil},
		"deleted with 1": {deleted(1), nil},
		"evicted with 0": {testPod(v1.RestartPolicyAlways, 0, 1), ptr.To[int64](0)},
		"evicted with 1": {testPod(v1.RestartPolicyAlways, 0, 1), ptr.To[int64](1)},
	} {
		for _, hook := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, hook %t", name, hook), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := newDirectRig(t)
					pod := c.pod.DeepCopy()
					var want []string
					if hook {
						withHooks(pod, "preStop")
						want = []string{"preStop c0"}
					}
					obs := g.syncUntilSteady(pod)
					g.fake.SetExec(func(ctx context.Context, _ *runtimeapi.ExecSyncRequest) (int32, error) {
						<-ctx.Done()
						return 0, ctx.Err()
					})
					began := time.Now()
					if err := g.KillPod(t.Context(), pod.UID, pod, obs, c.grace); err != nil {
						t.Fatal(err)
					}
					if took := time.Since(began); hook && took != time.Second {
						t.Errorf("the hook took %v of the simulated clock, want 1s", took)
					}
					if diff := cmp.Diff(want, g.hooksRun()); diff != "" {
						t.Errorf("hooks mismatch (-want +got):\n%s", diff)
					}
					if _, seconds := g.stops(obs); !slices.Equal(seconds, []int64{2}) {
						t.Errorf("it had %v s, want [2]", seconds)
					}
				})
			})
		}
	}
}

// TestPreStopTooLong: when the grace period is over the hook is ended, and the container has 2 s. A command that is
// killed has failed.
func TestPreStopTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newDirectRig(t)
		pod := testPod(v1.RestartPolicyAlways, 0, 1)
		withHooks(pod, "preStop")
		obs := g.syncUntilSteady(pod)
		g.fake.SetExec(func(ctx context.Context, _ *runtimeapi.ExecSyncRequest) (int32, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		})
		if err := g.KillPod(t.Context(), pod.UID, pod, obs, ptr.To[int64](10)); err != nil {
			t.Fatal(err)
		}
		if _, seconds := g.stops(obs); !slices.Equal(seconds, []int64{2}) {
			t.Errorf("it had %v s, want 2", seconds)
		}
		if !g.events.has(eventPreStopFailed) {
			t.Errorf("events %q, want FailedPreStopHook", g.events.list)
		}
	})
}

// TestOrphanHasItsHook: a pod that is no longer known carries its hook and its grace period in its annotations.
func TestOrphanHasItsHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newDirectRig(t)
		pod := testPod(v1.RestartPolicyAlways, 0, 1)
		pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](100)
		withHooks(pod, "preStop")
		obs := g.syncUntilSteady(pod)
		if err := g.KillPod(t.Context(), pod.UID, nil, obs, nil); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"preStop c0"}, g.hooksRun()); diff != "" {
			t.Errorf("hooks mismatch (-want +got):\n%s", diff)
		}
		if _, seconds := g.stops(obs); !slices.Equal(seconds, []int64{100}) { // without its grace it has 30
			t.Errorf("it had %v s, want [100]", seconds)
		}
	})
}

// TestPostStart: a hook that fails stops its container, which is restarted; one that is cut short stops nothing.
func TestPostStart(t *testing.T) {
	g := newRig(t)
	pod := testPod(v1.RestartPolicyAlways, 0, 2)
	withHooks(pod, "postStart")
	g.fake.SetExec(func(_ context.Context, req *runtimeapi.ExecSyncRequest) (int32, error) {
		if req.Cmd[1] == "c0" {
			return 9, nil
		}
		return 0, nil
	})
	res := g.SyncPod(t.Context(), SyncInput{Pod: pod, Observed: &observed.Pod{UID: pod.UID, Detailed: true}})
	obs := g.observe(pod)
	if got := res.Reasons["c0"]; got.Reason != "PostStartHookError" ||
		!strings.HasPrefix(got.Message, "Exec lifecycle hook ([postStart c0]) for Container \"c0\"") || res.Err == nil {
		t.Errorf("reason %+v, error %v; want PostStartHookError with \"Exec lifecycle hook\" and an error", got,
			res.Err)
	}
	if obs.Container("c0").Running() || !obs.Container("c1").Running() {
		t.Errorf("containers %+v, want c0 stopped and c1 running", obs.Containers)
	}
	if !slices.Contains(g.events.list, "FailedPostStartHook PostStartHook failed") ||
		!slices.Contains(g.events.list, "Killing FailedPostStartHook") || g.events.has(eventFailed) {
		t.Errorf("events %q, want FailedPostStartHook and Killing, and no Failed", g.events.list)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	g.fake.SetExec(func(hook context.Context, _ *runtimeapi.ExecSyncRequest) (int32, error) {
		cancel()
		<-hook.Done()
		return 0, hook.Err()
	})
	if res := g.SyncPod(ctx, SyncInput{Pod: pod, Observed: obs}); res.Err == nil {
		t.Error("SyncPod cancelled in a hook: Err = nil, want an error")
	}
	if c := g.observe(pod).Container("c0"); !c.Running() {
		t.Errorf("container whose hook was cancelled = %+v, want it running", c)
	}
}

// TestStartOver: a rule for the pod stops and removes all containers but ephemeral ones; counts, a log and the
// backoff of the cause go on.
func TestStartOver(t *testing.T) {
	g := newRig(t)
	pod := sidecarPod()
	withHooks(pod, "preStop")
	pod.Spec.Containers[0].RestartPolicyRules = []v1.ContainerRestartRule{
		ruleFor(v1.ContainerRestartRuleActionRestartAllContainers, 88),
	}
	pod.Spec.Containers[0].RestartPolicy = ptr.To(v1.ContainerRestartPolicyNever)
	pod.Spec.EphemeralContainers = []v1.EphemeralContainer{
		{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "e", Image: "img"}},
	}
	obs := g.syncUntilSteady(pod)
	box, debug := obs.Sandbox().ID, obs.Container("e").ID
	for round := range 2 {
		obs = g.observe(pod)
		for _, name := range []string{"c0", "c1"} { // the runtime of the test writes no logs
			if err := os.WriteFile(obs.Container(name).LogPath, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := g.fake.Exit(obs.Container("c0").ID, 88); err != nil {
			t.Fatal(err)
		}
		res := g.sync(pod)
		if res.Err != nil || !res.More || !res.Changed {
			t.Fatalf("round %d: %+v, want a change, more to do and no error", round, res)
		}
		if left := g.observe(pod); len(left.Containers) != 1 || left.Containers[0].ID != debug ||
			!left.Containers[0].Running() || left.Sandbox().ID != box {
			t.Errorf("round %d: left %+v, want only the ephemeral container, running in the same sandbox",
				round, left.Containers)
		}
		if !slices.Contains(g.events.list, "Killing killing") {
			t.Errorf("round %d: events %q, want Killing with the message killing", round, g.events.list)
		}
		res = g.sync(pod)
		now := g.observe(pod)
		if c := now.Container("c1"); !c.Running() || c.RestartCount != int32(round+1) {
			t.Errorf("round %d: %+v, want it to run, with %d restarts", round, c, round+1)
		}
		if logs, err := filepath.Glob(filepath.Join(filepath.Dir(obs.Container("c1").LogPath), "*.log")); err != nil ||
			len(logs) > 2 {
			t.Errorf("round %d: logs %q, %v; want no error, at most 2", round, logs, err)
		}
		if round == 1 { // the second crash of the cause waits
			if c := now.Container("c0"); c != nil || res.Reasons["c0"].Reason != reasonCrashLoop {
				t.Errorf("%+v: %+v, want nil, %v", c, res.Reasons, reasonCrashLoop)
			}
		}
	}
	if got := g.hooksRun(); len(got) > 0 {
		t.Errorf("hooks %q, want none", got)
	}
}

// child runs a script as a process in a "container" whose id is in every cgroup file.
func child(t *testing.T, script string) (*exec.Cmd, *observed.Container) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil { // it has set its traps
		t.Fatal(err)
	}
	return cmd, &observed.Container{ID: ":/", Name: "c0", State: isRunning, PID: cmd.Process.Pid}
}

// TestStopSignalIsSent: where the runtime does not know of stop signals the agent sends them, and waits for the end.
func TestStopSignalIsSent(t *testing.T) {
	r := New(Options{})
	spec := &v1.Container{Name: "c0", Lifecycle: &v1.Lifecycle{StopSignal: ptr.To(v1.SIGUSR1)}}
	cmd, c := child(t, "trap 'exit 7' USR1; trap 'exit 8' TERM; echo; while true; do sleep 0.05; done")
	var wg sync.WaitGroup
	wg.Go(func() {
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
			t.Errorf("it ended with %v, want 7", err)
		}
	})
	if !r.signalled(t.Context(), kill{spec: spec, container: c}) {
		t.Error("signalled(a running process) = false, want true")
	}
	wg.Wait()
	if !r.signalled(t.Context(), kill{spec: spec, container: c}) {
		t.Error("signalled(a process that has ended) = false, want true: nothing is left to the runtime")
	}
	known := *c
	known.StopSignal = "SIGUSR1"
	for name, k := range map[string]kill{
		"a runtime that knows the signal": {spec: spec, container: &known},
		"a spec without a signal":         {spec: &v1.Container{}, container: c},
	} {
		if r.signalled(t.Context(), k) {
			t.Errorf("signalled with %s = true, want false", name)
		}
	}
}

// TestProcess: the end of a process is waited for, as long as someone wants to.
func TestProcess(t *testing.T) {
	cmd, c := child(t, "echo; exec sleep 1000")
	p, err := openProcess(c.PID, c.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait: %v, want context.DeadlineExceeded", err)
	}
	if _, err := openProcess(c.PID, "another"); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("a process of another container: %v, want os.ErrProcessDone", err)
	}
	if err := p.signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := p.wait(t.Context()); err != nil {
		t.Errorf("wait for a process that was killed: %v, want no error", err)
	}
	_ = cmd.Wait() // it was killed
	if err := p.signal(unix.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal to nobody: %v, want os.ErrProcessDone", err)
	}
}

// TestSignals: every signal of the API has a form for the CRI and, on this machine, a number.
func TestSignals(t *testing.T) {
	for s, number := range map[v1.Signal]unix.Signal{
		v1.SIGTERM: unix.SIGTERM, v1.SIGUSR1: unix.SIGUSR1, v1.SIGCLD: unix.SIGCHLD, v1.SIGPOLL: unix.SIGIO,
		v1.SIGRTMIN: 34, v1.SIGRTMINPLUS3: 37, v1.SIGRTMAXMINUS14: 50, v1.SIGRTMAX: 64, "SIGRTMIN+99": 0, "nonsense": 0,
	} {
		if got := unixSignal(s); got != number {
			t.Errorf("%s: %d, want %d", s, got, number)
		}
	}
	for number, name := range runtimeapi.Signal_name {
		s := runtimeapi.Signal(number)
		if text := signalName(s); criSignal(v1.Signal(text)) != s || (text == "") != (number == 0) {
			t.Errorf("signalName(%s) = %q, and back = %s, want %s, and \"\" for 0 alone",
				name, text, criSignal(v1.Signal(text)), s)
		}
	}
}

// TestSandboxStatusFails: a sandbox that was made, and of which the runtime does not say what it is like, has an event
// of its own.
func TestSandboxStatusFails(t *testing.T) {
	g := newRig(t)
	pod := testPod(v1.RestartPolicyAlways, 0, 1)
	g.fake.Fail("PodSandboxStatus", 1, status.Error(codes.Internal, "no answer"))
	res := g.SyncPod(t.Context(), SyncInput{Pod: pod, Observed: &observed.Pod{UID: pod.UID, Detailed: true}})
	want := "FailedPodSandBoxStatus Unable to get pod sandbox status: rpc error: code = Internal desc = no answer"
	if res.Err == nil || !slices.Contains(g.events.list, want) || g.events.has(eventSandboxFailed) {
		t.Errorf("error %v, events %q; want an error and %q alone", res.Err, g.events.list, want)
	}
	g = newRig(t)
	g.fake.Fail("RunPodSandbox", 2, status.Error(codes.Unknown, "no network"))
	res = g.SyncPod(t.Context(), SyncInput{Pod: pod, Observed: &observed.Pod{UID: pod.UID, Detailed: true}})
	want = "FailedCreatePodSandBox Failed to create pod sandbox: rpc error: code = Unknown desc = no network"
	if res.Err == nil || !slices.Contains(g.events.list, want) {
		t.Errorf("error %v, events %q; want an error and %q", res.Err, g.events.list, want)
	}
}

func TestMessageOfSidecar(t *testing.T) {
	side := &v1.Container{Name: "a", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)}
	for message, want := range map[string]string{
		"Container a failed liveness probe, will be restarted": "Init container a failed liveness probe",
		"Container a definition changed, will be restarted":    "Init container a definition changed",
	} {
		if got := ofSidecar(side, message); got != want {
			t.Errorf("of a sidecar: %q, want %q", got, want)
		}
		if got := ofSidecar(&v1.Container{Name: "a"}, message); got != message {
			t.Errorf("of a container: %q, want %q", got, message)
		}
	}
}
