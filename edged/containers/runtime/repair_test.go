package runtime

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/repair"
)

// repairs is a repairer that notes what it is asked, and has repaired what it is told to.
type repairs struct {
	suspects  []repair.Suspect
	sandboxes []repair.Failure
	again     bool
}

func (r *repairs) Examine(_ context.Context, s repair.Suspect) bool {
	r.suspects = append(r.suspects, s)
	return r.again
}

func (r *repairs) ExamineSandbox(_ context.Context, f repair.Failure, _ time.Time) bool {
	r.sandboxes = append(r.sandboxes, f)
	return r.again
}

func newRepairRig(t *testing.T, again bool) (*fixture, *repairs) {
	t.Helper()
	g, r := newRig(t), &repairs{again: again}
	g.opts.Repair = r
	return g, r
}

var errNoExec = status.Error(codes.Unknown, `exec: "/app": exec format error`)

// TestStartAfterRepair: a container whose image was put right is started at once, under the same attempt, also where it
// would never be tried again.
func TestStartAfterRepair(t *testing.T) {
	for name, method := range map[string]string{"created": "CreateContainer", "started": "StartContainer"} {
		g, r := newRepairRig(t, true)
		g.fake.Fail(method, 1, errNoExec)
		pod := testPod(v1.RestartPolicyNever, 0, 1)
		obs := g.syncUntilSteady(pod)
		if c := obs.Container("c0"); !c.Running() || c.Attempt != 0 || len(obs.Containers) != 1 {
			t.Errorf("not %s: containers = %+v, want one, running, attempt 0", name, obs.Containers)
		}
		if len(r.suspects) != 1 {
			t.Fatalf("not %s: asked %d times, want one", name, len(r.suspects))
		}
		s := r.suspects[0]
		if s.Image != "docker.io/library/img:latest" || s.ID != "img" || s.Pod != pod ||
			!strings.Contains(s.Message, "exec format error") || s.Since.IsZero() {
			t.Errorf("not %s: %+v, want docker.io/library/img:latest, img, the pod, exec format error, a time", name, s)
		}
		if want := map[string]int{"created": 0, "started": 1}[name]; len(s.Dead) != want {
			t.Errorf("not %s: may be removed: %v, want %v", name, s.Dead, want)
		}
	}
}

// TestStartWithoutRepair: what was not repaired is shown as it always was, and not tried twice in a sync.
func TestStartWithoutRepair(t *testing.T) {
	g, r := newRepairRig(t, false)
	g.fake.Fail("StartContainer", 1, errNoExec)
	res := g.sync(testPod(v1.RestartPolicyAlways, 0, 1))
	if res.Reasons["c0"].Reason != reasonRunError || len(r.suspects) != 1 || len(g.fake.Calls("CreateContainer")) != 1 {
		t.Errorf("%+v, asked %d times, created %d; want %v, one, one",
			res.Reasons, len(r.suspects), len(g.fake.Calls("CreateContainer")), reasonRunError)
	}
}

// TestEndIsExamined: how a container ended is reported before its next start; not that of one that went down with its
// sandbox.
func TestEndIsExamined(t *testing.T) {
	g, r := newRepairRig(t, true)
	pod := testPod(v1.RestartPolicyAlways, 0, 1)
	obs := g.syncUntilSteady(pod)
	if err := g.fake.Exit(obs.Container("c0").ID, 139); err != nil {
		t.Fatal(err)
	}
	if obs = g.syncUntilSteady(pod); len(obs.Containers) != 2 || !obs.Container("c0").Running() {
		t.Fatalf("containers = %+v, want two, the newest running", obs.Containers)
	}
	if len(r.suspects) != 1 {
		t.Fatalf("asked %d times, want one", len(r.suspects))
	}
	s := r.suspects[0]
	want := repair.Failure{Stage: repair.Exit, ExitCode: 139}
	s.Lived = 0
	if diff := cmp.Diff(want, s.Failure); diff != "" {
		t.Errorf("failure mismatch (-want +got):\n%s", diff)
	}
	if _, err := g.client.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{
		PodSandboxId: obs.Sandbox().ID,
	}); err != nil {
		t.Fatal(err)
	}
	g.syncUntilSteady(pod)
	if len(r.suspects) != 1 {
		t.Errorf("it ended with its sandbox, and counts as a failure: %+v; want one", r.suspects[1])
	}
}

// TestSandboxAfterRepair: the image of sandboxes is put right, and the sandbox made in the same sync.
func TestSandboxAfterRepair(t *testing.T) {
	g, r := newRepairRig(t, true)
	g.fake.Fail("RunPodSandbox", 1, errNoExec)
	if res := g.sync(testPod(v1.RestartPolicyAlways, 0, 1)); res.Err != nil || len(r.sandboxes) != 1 {
		t.Errorf("%v, asked %d times; want no error, one", res.Err, len(r.sandboxes))
	}
}

// TestDeadSandboxThatCannotBeStopped: the pod gets another one after some tries, and none while the runtime is down.
func TestDeadSandboxThatCannotBeStopped(t *testing.T) {
	g := newRig(t)
	pod := testPod(v1.RestartPolicyAlways, 0, 1)
	old := g.syncUntilSteady(pod).Sandbox().ID
	if _, err := g.client.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{
		PodSandboxId: old,
	}); err != nil {
		t.Fatal(err)
	}
	g.fake.Fail("StopPodSandbox", 3*stopTries, status.Error(codes.Unavailable, "down"))
	for range 3 * stopTries {
		if res := g.sync(pod); res.Err == nil {
			t.Fatalf("sync while the runtime is down = %+v, want an error", res)
		}
	}
	g.fake.Fail("StopPodSandbox", 1000,
		status.Error(codes.Unknown, "failed to destroy network: unexpected end of JSON input"))
	for range stopTries - 1 {
		if res := g.sync(pod); res.Err == nil {
			t.Fatalf("sync while the sandbox cannot be stopped = %+v, want an error", res)
		}
	}
	if res := g.sync(pod); res.Err != nil || !g.events.has(eventSandboxLeft) {
		t.Fatalf("sync: %v, events %q; want no error and %s", res.Err, g.events.list, eventSandboxLeft)
	}
	obs := g.syncUntilSteady(pod)
	if box := obs.Sandbox(); box.ID == old || !box.Ready || box.Attempt != 1 || !obs.Container("c0").Running() {
		t.Errorf("sandbox %+v, c0 %+v; want a new sandbox, attempt 1, and c0 running", box, obs.Container("c0"))
	}
}

// TestNameThatIsNotGivenBack: what is left over and cannot be removed has the pod take the next name.
func TestNameThatIsNotGivenBack(t *testing.T) {
	g := newRig(t)
	stale := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "default", Uid: "1"},
	}
	// no labels: it is not seen
	old, err := g.client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: stale})
	if err != nil {
		t.Fatal(err)
	}
	lost := &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "c0"}}
	if _, err := g.client.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: old.PodSandboxId, Config: lost, SandboxConfig: stale,
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := g.client.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{
		PodSandboxId: old.PodSandboxId,
	}); err != nil {
		t.Fatal(err)
	}
	broken := status.Error(codes.Unknown, "unexpected end of JSON input")
	g.fake.Fail("RemovePodSandbox", 1000, broken)
	g.fake.Fail("RemoveContainer", 1000, broken)
	pod := testPod(v1.RestartPolicyAlways, 0, 1)
	obs := g.syncUntilSteady(pod)
	if box, c := obs.Sandbox(), obs.Container("c0"); box.Attempt != 1 || !c.Running() || c.Attempt != 1 {
		t.Errorf("sandbox %+v, c0 %+v; want attempt 1 of both, running", box, c)
	}
}
