package runtime

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// TestCreateTakesFewCalls: what a pod's start costs beside the bare calls is one question for its addresses, and one
// for the user of each image that was not run before.
func TestCreateTakesFewCalls(t *testing.T) {
	g := newRig(t)
	g.opts.Images = images{"img ": "sha256:one"}
	pod := testPod(v1.RestartPolicyAlways, 0, 2)
	res := g.SyncPod(t.Context(), SyncInput{Pod: pod, Observed: &observed.Pod{UID: pod.UID, Detailed: true}})
	if res.Err != nil || !res.Changed {
		t.Fatalf("sync: %+v, want a change and no error", res)
	}
	want := []string{
		"RunPodSandbox", "PodSandboxStatus", "ImageStatus", "CreateContainer", "StartContainer", "CreateContainer",
		"StartContainer",
	}
	if diff := cmp.Diff(want, methods(g.fake.Calls())); diff != "" {
		t.Errorf("calls (-want +got)\n%s", diff)
	}
	config := g.fake.Calls("CreateContainer")[0].Request.(*runtimeapi.CreateContainerRequest).Config
	if string(config.Envs[0].Value) != g.observe(pod).Sandbox().IPs[0] {
		t.Errorf("the container was told the addresses %q, want %q",
			config.Envs[0].Value, g.observe(pod).Sandbox().IPs[0])
	}
	if config.LogPath != "c0/0.log" {
		t.Errorf("log path %q, want \"c0/0.log\"", config.LogPath)
	}
	link := filepath.Join(g.opts.ContainerLogsDir, "p_default_c0-"+g.observe(pod).Container("c0").ID+".log")
	if target, err := os.Readlink(link); err != nil ||
		target != filepath.Join(g.opts.PodLogsDir, "default_p_1", "c0", "0.log") {
		t.Errorf("link %s: %q, %v; want the log in the folder of the pod", link, target, err)
	}
	g.fake.ForgetCalls()
	if res := g.sync(pod); res.Changed || res.Err != nil {
		t.Errorf("a second sync: %+v, want no change and no error", res)
	}
	if calls := g.fake.Calls("RunPodSandbox", "CreateContainer", "StopContainer", "StopPodSandbox"); len(calls) > 0 {
		t.Errorf("a pod in sync was touched: %v, want none", methods(calls))
	}
}

// TestDeadSandbox: a sandbox that died by itself still holds its addresses and host ports; it has to be
// stopped before its successor comes, and does not stay for ever.
func TestDeadSandbox(t *testing.T) {
	g := newRig(t)
	g.fake.SetClock(func() time.Time { return time.Now().Add(-time.Hour) }) // what ends has lived for long
	pod := testPod(v1.RestartPolicyAlways, 0, 1)
	first := g.syncUntilSteady(pod).Sandbox().ID
	if err := g.fake.KillSandbox(first); err != nil {
		t.Fatal(err)
	}
	g.fake.ForgetCalls()
	obs := g.syncUntilSteady(pod)
	if got := g.fake.Stops(first); got < 1 {
		t.Errorf("the dead sandbox was stopped %d times: its network is left; want at least 1", got)
	}
	if calls := methods(g.fake.Calls("StopPodSandbox", "RunPodSandbox")); len(calls) < 2 ||
		calls[0] != "StopPodSandbox" {
		t.Errorf("calls %q, want StopPodSandbox first: the old one has to go", calls)
	}
	if !g.events.has(eventSandboxChanged) {
		t.Errorf("events = %q, want %s", g.events.list, eventSandboxChanged)
	}
	if !obs.Container("c0").Running() || obs.Container("c0").Attempt != 1 {
		t.Errorf("c0 is %+v, want it to run, attempt 1", obs.Container("c0"))
	}
	for range 5 {
		if err := g.fake.KillSandbox(g.observe(pod).Sandbox().ID); err != nil {
			t.Fatal(err)
		}
		obs = g.syncUntilSteady(pod)
	}
	if len(obs.Sandboxes) > 3 {
		t.Errorf("%d sandboxes are kept, want at most 3", len(obs.Sandboxes))
	}
	if attempts := obs.Attempts("c0"); len(attempts) != 2 {
		t.Errorf("%d attempts are kept, want the running one and the last", len(attempts))
	}
}

// TestOutdatedSnapshot: a sync on a snapshot that missed what runs must not stop it.
func TestOutdatedSnapshot(t *testing.T) {
	g := newRig(t)
	pod := testPod(v1.RestartPolicyAlways, 0, 1)
	before := g.syncUntilSteady(pod)
	empty := &observed.Pod{UID: pod.UID, Detailed: true}
	if res := g.SyncPod(t.Context(), SyncInput{Pod: pod, Observed: empty}); res.Err == nil || !res.Changed {
		t.Errorf("no sandbox in the snapshot: %+v, want an error and a change, so that it is read again", res)
	}
	noContainers := &observed.Pod{UID: pod.UID, Detailed: true, Sandboxes: before.Sandboxes}
	if res := g.SyncPod(t.Context(), SyncInput{Pod: pod, Observed: noContainers}); res.Err == nil || !res.Changed {
		t.Errorf("no containers in the snapshot: %+v, want an error and a change, so that it is read again", res)
	}
	after := g.syncUntilSteady(pod)
	if after.Sandbox().ID != before.Sandbox().ID || !after.Sandbox().Ready {
		t.Errorf("sandbox = %+v, want %s, ready", after.Sandbox(), before.Sandbox().ID)
	}
	if after.Container("c0").ID != before.Container("c0").ID || !after.Container("c0").Running() {
		t.Errorf("container = %+v, want %s, running", after.Container("c0"), before.Container("c0").ID)
	}
	if g.events.has(eventFailed) || g.events.has(eventSandboxFailed) {
		t.Errorf("events = %q, want neither %s nor %s", g.events.list, eventFailed, eventSandboxFailed)
	}
}

// TestReservedNames: what is left of a call that was cut off holds the names, and carries no labels by
// which it is found.
func TestReservedNames(t *testing.T) {
	g := newRig(t)
	pod := testPod(v1.RestartPolicyAlways, 0, 1)
	stale := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "default", Uid: "1"},
	}
	old, err := g.client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: stale})
	if err != nil {
		t.Fatal(err)
	}
	obs := g.syncUntilSteady(pod)
	if n := g.fake.Stops(old.PodSandboxId); n != -1 {
		t.Errorf("Stops(the stale sandbox) = %d, want -1: it was removed", n)
	}
	running := obs.Container("c0").ID
	if err := g.fake.Exit(running, 0); err != nil {
		t.Fatal(err)
	}
	// Attempt 1 exists, was never started, and is unknown to the lists.
	left, err := g.client.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: obs.Sandbox().ID, Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "c0", Attempt: 1},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	obs = g.syncUntilSteady(pod)
	if c := obs.Container("c0"); !c.Running() || c.Attempt != 1 || c.ID == left.ContainerId {
		t.Errorf("c0 is %+v, want another one that runs, attempt 1", c)
	}
}

// TestAdoption: a container of the same hash is kept, no matter who started it.
func TestAdoption(t *testing.T) {
	g := newRig(t)
	pod := testPod(v1.RestartPolicyAlways, 0, 1)
	labels := podLabels(pod)
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "default", Uid: "1", Attempt: 4}, Labels: labels,
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{}},
		},
	}
	box, err := g.client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: sandbox})
	if err != nil {
		t.Fatal(err)
	}
	made, err := g.client.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: box.PodSandboxId, SandboxConfig: sandbox, Config: &runtimeapi.ContainerConfig{
			Metadata:    &runtimeapi.ContainerMetadata{Name: "c0", Attempt: 9},
			Image:       &runtimeapi.ImageSpec{Image: "img"},
			Labels:      containerLabels(pod, &pod.Spec.Containers[0]),
			Annotations: containerAnnotations(pod, &pod.Spec.Containers[0], 9),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.client.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{
		ContainerId: made.ContainerId,
	}); err != nil {
		t.Fatal(err)
	}
	if c := g.syncUntilSteady(pod).Container("c0"); c.ID != made.ContainerId || !c.Running() || c.RestartCount != 9 {
		t.Errorf("c0 is %+v, want the one that was there, running, with 9 restarts", c)
	}
	pod.Spec.Containers[0].Image = "other"
	c := g.syncUntilSteady(pod).Container("c0")
	if c.ID == made.ContainerId || !c.Running() || c.Attempt != 10 {
		t.Errorf("after a new image: %+v, want another one that runs, attempt 10", c)
	}
	if !g.events.has(eventKilling) || !strings.Contains(strings.Join(g.events.list, "\n"),
		"Killing Container c0 definition changed, will be restarted") {
		t.Errorf("events %q, want Killing with \"definition changed\"", g.events.list)
	}
}

// TestNewestByAttempt: the clock of a device without a battery goes back at a reboot, so that the newest
// attempt may be the one with the oldest time.
func TestNewestByAttempt(t *testing.T) {
	g := newRig(t)
	pod := testPod(v1.RestartPolicyNever, 0, 2)
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var clock time.Time
	g.fake.SetClock(func() time.Time { return clock })
	clock = at.Add(3 * time.Hour)
	box := g.create(pod, "c0", "", 0)
	clock = at.Add(2 * time.Hour)
	g.create(pod, "c1", box, 0)
	clock = at.Add(time.Hour)
	g.create(pod, "c0", box, 1)
	obs := g.observe(pod)
	if c := obs.Container("c0"); c.Attempt != 1 {
		t.Errorf("the newest c0 is attempt %d, want 1", c.Attempt)
	}
	lists, err := g.ListPods(t.Context())
	if err != nil || len(lists) != 1 {
		t.Fatalf("ListPods() = %v, %v; want one pod", lists, err)
	}
	if c := lists[0].Container("c0"); c.Attempt != 1 {
		t.Errorf("in the lists the newest c0 is attempt %d, want 1", c.Attempt)
	}
}

// TestCrashLoop: the words and times of a container that crashes, and that a clock which went back does not
// hold it for years.
func TestCrashLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newDirectRig(t)
		pod := testPod(v1.RestartPolicyAlways, 0, 1)
		for range 2 {
			if err := g.fake.Exit(g.syncUntilSteady(pod).Container("c0").ID, 1); err != nil {
				t.Fatal(err)
			}
		}
		res := g.sync(pod)
		want := observed.Reason{
			Reason:  "CrashLoopBackOff",
			Message: "back-off 10s restarting failed container=c0 pod=p_default(1)",
		}
		if diff := cmp.Diff(want, res.Reasons["c0"]); diff != "" {
			t.Errorf("reason mismatch (-want +got):\n%s", diff)
		}
		if in := time.Until(res.RetryAt); in != 10*time.Second || res.Err != nil {
			t.Errorf("retry in %v, %v; want 10s, no error", in, res.Err)
		}
		if !g.events.has(eventBackOff) {
			t.Errorf("events %q, want one of BackOff", g.events.list)
		}
	})
}

func TestBackoffWhenClockWentBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackoff(5 * time.Minute)
		future := time.Now().Add(24 * 365 * time.Hour)
		last := &observed.Container{
			ID:           "x",
			State:        isExited,
			RestartCount: 2,
			StartedAt:    future.Add(-time.Second),
			FinishedAt:   future,
		}
		const want = 20 * time.Second
		delay, until := b.waitFor("1", "c", 1, last)
		if in := time.Until(until); delay != want || in != want {
			t.Errorf("wait %v, which ends in %v; want %v for both", delay, in, want)
		}
		time.Sleep(time.Second)
		if _, again := b.waitFor("1", "c", 1, last); !again.Equal(until) {
			t.Errorf("the end of the wait is %v, want %v as before", again, until)
		}
	})
}

// TestSidecars: sidecars come back when they die beside a pod that works, hold up nothing that waited for
// them once, and are not started again when the pod is done.
func TestSidecars(t *testing.T) {
	pod := testPod(v1.RestartPolicyNever, 2, 1)
	pod.Spec.InitContainers[0].RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
	for name, c := range map[string]struct{ obs, want string }{
		"done":                           {"i0 exited 0,i1 exited 0,c0 exited 0", ""},
		"done, the sidecar runs":         {"i0 running,i1 exited 0,c0 exited 0", "kill pod"},
		"failed, the sidecar runs":       {"i0 running,i1 exited 0,c0 exited 1", "kill pod"},
		"failed":                         {"i0 exited 1,i1 exited 0,c0 exited 1", ""},
		"dies while an init runs":        {"i0 exited 1,i1 running", "start i0"},
		"dies between two init":          {"i0 exited 1,i1 created", "start i0, start i1"},
		"dies before it was waited for":  {"i0 exited 1", "start i0, start i1"},
		"dies while the main runs":       {"i0 exited 1,i1 exited 0,c0 running", "start i0"},
		"dies, the main was not started": {"i0 exited 1,i1 exited 0,c0 created", "start i0, start c0"},
	} {
		if got := describe(computeActions(pod, seen(strings.Split(c.obs, ",")...), nil)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestBackingOffSidecar: what a sidecar once let through goes on while it waits for its restart.
func TestBackingOffSidecar(t *testing.T) {
	g := newRig(t)
	pod := testPod(v1.RestartPolicyAlways, 1, 1)
	pod.Spec.InitContainers[0].RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
	obs := g.syncUntilSteady(pod)
	for range 2 { // the second crash has to wait
		if err := g.fake.Exit(obs.Container("i0").ID, 1); err != nil {
			t.Fatal(err)
		}
		obs = g.syncUntilSteady(pod)
	}
	if err := g.fake.Exit(obs.Container("c0").ID, 1); err != nil {
		t.Fatal(err)
	}
	res := g.sync(pod)
	if res.Reasons["i0"].Reason != reasonCrashLoop {
		t.Fatalf("the sidecar does not wait: %+v, want %v", res, reasonCrashLoop)
	}
	if c := g.observe(pod).Container("c0"); !c.Running() {
		t.Errorf("container while the sidecar waits = %+v, want it running", c)
	}
}

// TestFailures: each step that fails shows its reason with the runtime's words, and heals.
func TestFailures(t *testing.T) {
	boom := status.Error(codes.Unknown, "boom")
	for method, want := range map[string]observed.Reason{
		"CreateContainer": {Reason: "CreateContainerError", Message: "boom"},
		"StartContainer":  {Reason: "RunContainerError", Message: "boom"},
	} {
		g := newRig(t)
		pod := testPod(v1.RestartPolicyAlways, 0, 1)
		g.fake.Fail(method, 1, boom)
		res := g.sync(pod)
		if diff := cmp.Diff(want, res.Reasons["c0"]); diff != "" || res.Err == nil {
			t.Errorf("%s: %v (-want +got)\n%s", method, res.Err, diff)
		}
		if !g.events.has(eventFailed) {
			t.Errorf("%s: %q, want one of Failed", method, g.events.list)
		}
		obs := g.syncUntilSteady(pod)
		if !obs.Container("c0").Running() || len(obs.Attempts("c0")) != 1 {
			t.Errorf("%s: container = %+v, %d attempts, want it running, 1",
				method, obs.Container("c0"), len(obs.Attempts("c0")))
		}
	}
	g := newRig(t)
	pod := testPod(v1.RestartPolicyAlways, 0, 1)
	g.fake.Fail("RunPodSandbox", 1, boom)
	res := g.sync(pod)
	if diff := cmp.Diff(&observed.Reason{Reason: "FailedCreatePodSandBox", Message: "boom"},
		res.SandboxErr); diff != "" || res.Err == nil {
		t.Errorf("RunPodSandbox: %v (-want +got)\n%s", res.Err, diff)
	}
	g.syncUntilSteady(pod)
	// The answer was lost, the sandbox is there: nothing is doubled.
	g = newRig(t)
	g.fake.FailAfter("RunPodSandbox", 1, status.Error(codes.DeadlineExceeded, "late"))
	if res := g.sync(pod); res.Err == nil || !cri.IsDown(res.Err) {
		t.Errorf("lost answer: %+v, want an error that the runtime is down", res)
	}
	if obs := g.syncUntilSteady(pod); len(obs.Sandboxes) != 1 || !obs.Container("c0").Running() {
		t.Errorf("after a lost answer: %d sandboxes, want one, and c0 to run", len(obs.Sandboxes))
	}
	g = newRig(t)
	g.inputs.err = fmt.Errorf("configmap %q not found", "cm")
	if diff := cmp.Diff(observed.Reason{Reason: "CreateContainerConfigError", Message: `configmap "cm" not found`},
		g.sync(pod).Reasons["c0"]); diff != "" {
		t.Errorf("inputs (-want +got)\n%s", diff)
	}
}

func TestKillAndRemove(t *testing.T) {
	g := newRig(t)
	pod := testPod(v1.RestartPolicyAlways, 0, 3)
	pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](7)
	obs := g.syncUntilSteady(pod)
	graces := func() []int64 {
		var out []int64
		for _, c := range g.fake.Calls("StopContainer") {
			out = append(out, c.Request.(*runtimeapi.StopContainerRequest).Timeout)
		}
		g.fake.ForgetCalls()
		return out
	}
	g.fake.Fail("StopContainer", 1, status.Error(codes.Unknown, "stuck"))
	if err := g.KillPod(t.Context(), pod.UID, pod, obs, nil); err == nil || !strings.Contains(err.Error(), "stuck") {
		t.Errorf("err = %v, want an error with \"stuck\"", err)
	}
	if diff := cmp.Diff([]int64{7, 7, 7}, graces()); diff != "" {
		t.Errorf("graces of the spec (-want +got)\n%s", diff)
	}
	obs = g.observe(pod)
	if err := g.KillPod(t.Context(), pod.UID, nil, obs, nil); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]int64{7}, graces()); diff != "" {
		t.Errorf("grace of an orphan (-want +got)\n%s", diff)
	}
	if obs = g.observe(pod); obs.Alive() {
		t.Errorf("after KillPod: %+v, want nothing alive", obs)
	}
	if err := g.KillPod(t.Context(), pod.UID, pod, obs, ptr.To[int64](0)); err != nil {
		t.Errorf("KillPod a second time: %v, want no error", err)
	}
	logs := filepath.Join(g.opts.PodLogsDir, "default_p_1")
	other := filepath.Join(g.opts.PodLogsDir, "default_p_11")
	lost := filepath.Join(g.opts.ContainerLogsDir, "p_default_c0-lost.log")
	foreign := filepath.Join(g.opts.ContainerLogsDir, "p_default_c0-foreign.log")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{
		lost: filepath.Join(logs, "c0", "9.log"), foreign: filepath.Join(other, "c0", "0.log"),
	} {
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.RemovePod(t.Context(), obs); err != nil {
		t.Fatal(err)
	}
	if left := g.observe(pod); len(left.Sandboxes)+len(left.Containers) > 0 {
		t.Errorf("left: %+v, want none", left)
	}
	if _, err := os.Stat(logs); !os.IsNotExist(err) {
		t.Errorf("Stat of the logs: %v, want %v", err, os.ErrNotExist)
	}
	links, err := filepath.Glob(filepath.Join(g.opts.ContainerLogsDir, "*"))
	if diff := cmp.Diff([]string{foreign}, links); diff != "" || err != nil {
		t.Errorf("links that are left: %v (-want +got)\n%s", err, diff)
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("Stat of the logs of another pod: %v, want them to exist", err)
	}
}

// TestSandboxesAreStoppedOnce: removing a pod does not stop again what was stopped, unless it could not be removed
// then.
func TestSandboxesAreStoppedOnce(t *testing.T) {
	g := newRig(t)
	pod := testPod(v1.RestartPolicyAlways, 0, 1)
	calls := func(what string, do func() error, fails bool, want ...string) {
		t.Helper()
		g.fake.ForgetCalls()
		if err := do(); (err != nil) != fails {
			t.Fatalf("%s: error %v, want one: %t", what, err, fails)
		}
		if diff := cmp.Diff(want, methods(g.fake.Calls("StopPodSandbox", "RemovePodSandbox"))); diff != "" {
			t.Errorf("%s (-want +got)\n%s", what, diff)
		}
	}
	kill := func() error { return g.KillPod(t.Context(), pod.UID, pod, g.observe(pod), nil) }
	remove := func() error { return g.RemovePod(t.Context(), g.observe(pod)) }

	g.syncUntilSteady(pod)
	g.fake.Fail("StopPodSandbox", 1, status.Error(codes.Unknown, "failed to destroy network"))
	calls("it cannot be stopped", kill, true, "StopPodSandbox")
	calls("stopped now", kill, false, "StopPodSandbox")
	g.fake.Fail("RemovePodSandbox", 1, status.Error(codes.Unknown, "busy"))
	calls("it cannot be removed", remove, true, "RemovePodSandbox")
	calls("removed after all", remove, false, "StopPodSandbox", "RemovePodSandbox")

	g.syncUntilSteady(pod)
	if err := g.fake.KillSandbox(g.observe(pod).Sandbox().ID); err != nil {
		t.Fatal(err)
	}
	calls("one that nobody stopped", remove, false, "StopPodSandbox", "RemovePodSandbox")
	if len(g.stopped.done) > 0 {
		t.Errorf("remembered after their removal: %v, want none", g.stopped.done)
	}
}

// TestRemoveForgottenPod: the runtime lost its state, and the logs of the pod are still there.
func TestRemoveForgottenPod(t *testing.T) {
	g := newRig(t)
	logs := filepath.Join(g.opts.PodLogsDir, "default_p_1")
	if err := os.MkdirAll(filepath.Join(logs, "c0"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := g.RemovePod(t.Context(), &observed.Pod{UID: "1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(logs); !os.IsNotExist(err) {
		t.Errorf("Stat of the logs: %v, want %v", err, os.ErrNotExist)
	}
}

func TestGrace(t *testing.T) {
	pod := testPod(v1.RestartPolicyAlways, 0, 1)
	pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](7)
	if got := graceOf(pod, nil); got != 7 {
		t.Errorf("the grace of the spec: %d, want 7", got)
	}
	if got := graceOf(pod, ptr.To[int64](0)); got != 0 {
		t.Errorf("an override of 0: %d, want 0", got)
	}
	pod.DeletionGracePeriodSeconds = ptr.To[int64](5)
	if got := graceOf(pod, nil); got != 5 {
		t.Errorf("the deletion's grace: %d, want 5", got)
	}
	if got := graceOf(nil, nil); got != 30 {
		t.Errorf("of nothing: %d, want 30", got)
	}
}

// TestStrangers: what carries no pod labels, or garbage in its annotations, disturbs nothing.
func TestStrangers(t *testing.T) {
	g := newRig(t)
	if _, err := g.client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{
		Config: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "x"}, Labels: map[string]string{labelPodUID: "1"},
		},
	}); err != nil {
		t.Fatal(err)
	}
	box, err := g.client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{
		Config: &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "y"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.client.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: box.PodSandboxId, Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "z"}, Annotations: map[string]string{annotationHash: "zz",
				annotationRestartCount: "-1"},
		},
	}); err != nil {
		t.Fatal(err)
	}
	if pods, err := g.ListPods(t.Context()); err != nil || len(pods) != 0 {
		t.Errorf("ListPods() = %v, %v; want none", pods, err)
	}
	if obs, err := g.GetPod(t.Context(), "1", nil); err != nil || len(obs.Sandboxes) != 0 || !obs.Detailed {
		t.Errorf("GetPod() = %+v, %v; want no sandbox, and details", obs, err)
	}
}
