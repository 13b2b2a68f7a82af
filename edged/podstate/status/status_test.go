package status

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

var t0 = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func pod(policy v1.RestartPolicy, inits, mains int) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name:       "p",
		Namespace:  "default",
		UID:        "1",
		Generation: 3,
	}, Spec: v1.PodSpec{RestartPolicy: policy}}
	for i := range inits {
		p.Spec.InitContainers = append(p.Spec.InitContainers, v1.Container{Name: fmt.Sprintf("i%d", i), Image: "img"})
	}
	for i := range mains {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: fmt.Sprintf("c%d", i), Image: "img"})
	}
	return p
}

// box is a snapshot with a ready sandbox and containers.
func box(containers ...*observed.Container) *observed.Pod {
	return &observed.Pod{
		UID:        "1",
		Detailed:   true,
		Containers: containers,
		Sandboxes:  []*observed.Sandbox{{ID: "s", Ready: true, IPs: []string{"10.0.0.2"}}},
	}
}

func runningC(name string) *observed.Container {
	return &observed.Container{
		ID:        name + "-id",
		Name:      name,
		SandboxID: "s",
		State:     runtimeapi.ContainerState_CONTAINER_RUNNING,
		Image:     "img",
		ImageRef:  "sha256:1",
		StartedAt: t0,
	}
}

func exitedC(name string, code int32) *observed.Container {
	reason := "Completed"
	if code != 0 {
		reason = "Error"
	}
	return &observed.Container{
		ID:         name + "-id",
		Name:       name,
		SandboxID:  "s",
		State:      runtimeapi.ContainerState_CONTAINER_EXITED,
		Image:      "img",
		ImageRef:   "sha256:1",
		ExitCode:   code,
		Reason:     reason,
		StartedAt:  t0,
		FinishedAt: t0.Add(time.Second),
	}
}

func generate(p *v1.Pod, obs *observed.Pod, change ...func(*Inputs)) v1.PodStatus {
	in := Inputs{Pod: p, Observed: obs, Runtime: "containerd", HostIPs: []string{"192.0.2.1"}, Now: t0.Add(time.Minute)}
	for _, c := range change {
		c(&in)
	}
	out, _ := Generate(in)
	return out
}

func condition(s v1.PodStatus, kind v1.PodConditionType) v1.PodCondition {
	for _, c := range s.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return v1.PodCondition{}
}

func TestPhases(t *testing.T) {
	always, onFailure, never := v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever
	done := func(in *Inputs) { in.Terminated = true }
	doneStatic := func(in *Inputs) { in.Terminated, in.Static = true, true }
	before := func(p *v1.Pod, obs *observed.Pod) func(*Inputs) {
		return func(in *Inputs) { in.Previous = generate(p, obs) }
	}
	waits := func(reason string) func(*Inputs) {
		return func(in *Inputs) { in.Reasons = map[string]observed.Reason{"c0": {Reason: reason}} }
	}
	old := runningC("c0")
	old.SandboxID = "of an earlier boot"
	for name, c := range map[string]struct {
		pod      *v1.Pod
		obs      *observed.Pod
		change   func(*Inputs)
		want     v1.PodPhase
		finished bool
	}{
		"nothing yet":        {pod(always, 0, 1), nil, nil, v1.PodPending, false},
		"sandbox alone":      {pod(always, 0, 1), box(), nil, v1.PodPending, false},
		"created":            {pod(always, 0, 1), box(createdC("c0")), nil, v1.PodPending, false},
		"init runs":          {pod(always, 1, 1), box(runningC("i0")), nil, v1.PodPending, false},
		"init failed, Never": {pod(never, 1, 1), box(exitedC("i0", 1)), nil, v1.PodPending, true},
		"init failed, Always": {pod(always, 1, 1), box(exitedC("i0", 1)), nil, v1.PodPending,
			false},
		"init failed, Never, nothing runs": {pod(never, 1, 1), box(exitedC("i0", 1)), done, v1.PodFailed, true},
		"init runs again in a new sandbox": {pod(always, 1, 1), box(runningC("i0"), old), nil, v1.PodPending,
			false},
		"runs": {pod(always, 0, 2), box(runningC("c0"), runningC("c1")), nil,
			v1.PodRunning, false},
		"one runs, one was never started": {pod(always, 0, 2), box(runningC("c0")), nil, v1.PodPending, false},
		"one runs, one was never started, before": {
			pod(always, 0, 2), box(runningC("c0")), before(pod(always, 0, 2), box(runningC("c0"), exitedC("c1", 0))),
			v1.PodRunning, false,
		},
		"crash loop": {pod(always, 0, 1), box(exitedC("c0", 1)), waits("CrashLoopBackOff"),
			v1.PodRunning, false},
		"ran, image is gone": {pod(always, 0, 1), box(exitedC("c0", 1)), waits("ErrImagePull"),
			v1.PodRunning, false},
		"ran, cannot be configured": {
			pod(always, 0, 1), box(exitedC("c0", 1)), waits("CreateContainerConfigError"), v1.PodRunning, false,
		},
		"ran, cannot be started": {
			pod(always, 0, 1), box(exitedC("c0", 1)), waits("RunContainerError"), v1.PodRunning, false,
		},
		"never ran, image is gone": {pod(always, 0, 1), box(), waits("ErrImagePull"), v1.PodPending,
			false},
		"lost": {
			pod(always, 0, 1), box(), before(pod(always, 0, 1), box(runningC("c0"))), v1.PodRunning, false,
		},
		"lost, Never": {
			pod(never, 0, 1), box(), before(pod(never, 0, 1), box(runningC("c0"))), v1.PodRunning, true,
		},
		"well ended, Never": {
			pod(never, 0, 1), box(exitedC("c0", 0)), before(pod(never, 0, 1), box(runningC("c0"))), v1.PodRunning, true,
		},
		"well ended, Never, nothing runs": {pod(never, 0, 1), box(exitedC("c0", 0)), done, v1.PodSucceeded,
			true},
		"well ended, never seen to run": {pod(never, 0, 1), box(exitedC("c0", 0)), nil, v1.PodPending, true},
		"well ended, OnFailure": {pod(onFailure, 0, 1), box(exitedC("c0", 0)), done, v1.PodSucceeded,
			true},
		"well ended, Always": {pod(always, 0, 1), box(exitedC("c0", 0)), nil, v1.PodRunning,
			false},
		"failed, Never": {pod(never, 0, 1), box(exitedC("c0", 1)), done, v1.PodFailed, true},
		"failed, OnFailure": {pod(onFailure, 0, 1), box(exitedC("c0", 1)), nil, v1.PodRunning,
			false},
		"half ended, Never": {pod(never, 0, 2), box(exitedC("c0", 1), runningC("c1")), nil,
			v1.PodRunning, false},
		"one failed, Never": {pod(never, 0, 2), box(exitedC("c0", 1), exitedC("c1", 0)), done,
			v1.PodFailed, true},
		"ended by us, well": {pod(always, 0, 1), box(exitedC("c0", 0)), done, v1.PodSucceeded,
			true},
		"ended by us, killed": {pod(always, 0, 1), box(exitedC("c0", 137)), done, v1.PodFailed,
			true},
		"ended by us, static": {pod(always, 0, 1), box(exitedC("c0", 0)), doneStatic, v1.PodRunning,
			false},
		"ended by itself, static": {
			pod(never, 0, 1), box(exitedC("c0", 0)), doneStatic, v1.PodSucceeded, true,
		},
		"ended, never started": {pod(always, 0, 1), nil, done, v1.PodPending, false},
		"rejected": {pod(always, 0, 1), nil, func(in *Inputs) {
			in.Rejected = &observed.Reason{Reason: "OutOfcpu", Message: "m"}
		}, v1.PodFailed, true},
		"what has ended stays so": {pod(never, 0, 1), nil, func(in *Inputs) {
			in.Previous = generate(pod(never, 0, 1), box(exitedC("c0", 0)), done)
		}, v1.PodSucceeded, true},
		"what the API has as ended runs": {pod(always, 0, 1), box(runningC("c0")), func(in *Inputs) {
			in.Previous = v1.PodStatus{Phase: v1.PodFailed, Reason: "NodeLost"}
		}, v1.PodFailed, true},
	} {
		in := Inputs{Pod: c.pod, Observed: c.obs, Runtime: "containerd", Now: t0}
		if c.change != nil {
			c.change(&in)
		}
		got, finished := Generate(in)
		if got.Phase != c.want || finished != c.finished {
			t.Errorf("%s: %s, finished %t; want %s, %t", name, got.Phase, finished, c.want, c.finished)
		}
	}
}

// TestHeldBack: a final phase is reported when nothing of the pod runs any more. Its conditions do not wait for that.
func TestHeldBack(t *testing.T) {
	p := pod(v1.RestartPolicyNever, 0, 1)
	runs := generate(p, box(runningC("c0")))
	for name, c := range map[string]struct {
		code   int32
		phase  v1.PodPhase
		reason string
	}{
		"well":  {0, v1.PodSucceeded, podCompleted},
		"badly": {1, v1.PodFailed, podFailed},
	} {
		held := generate(p, box(exitedC("c0", c.code)), func(in *Inputs) { in.Previous = runs })
		if ready := condition(held, v1.PodReady); held.Phase != v1.PodRunning || ready.Status != v1.ConditionFalse ||
			ready.Reason != c.reason {
			t.Errorf("%s: while its sandbox runs: %s, %+v; want Running, not ready for %s", name, held.Phase, ready,
				c.reason)
		}
		gone := box(exitedC("c0", c.code))
		gone.Sandboxes[0].Ready = false
		over := generate(p, gone, func(in *Inputs) { in.Previous, in.Terminated = held, true })
		if over.Phase != c.phase || condition(over, v1.PodReadyToStartContainers).Status != v1.ConditionFalse ||
			over.PodIP != runs.PodIP {
			t.Errorf("%s: at the end: %s, %s, %+v; want %s, %s, PodReadyToStartContainers False", name, over.Phase,
				over.PodIP, over.Conditions,
				c.phase, runs.PodIP)
		}
	}
}

// TestUnknownTwice: a container of which the runtime knows no state has ended until it is started again, however often
// it is seen.
func TestUnknownTwice(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, 0, 1)
	last := generate(p, box(runningC("c0")))
	for range 3 {
		last = generate(p, box(unknownC("c0")), func(in *Inputs) { in.Previous = last })
		s := last.ContainerStatuses[0]
		got := fmt.Sprintf("%s, %s, %d", stateText(s.State), stateText(s.LastTerminationState), s.RestartCount)
		if want := "terminated ContainerStatusUnknown 137, -, 1"; got != want {
			t.Errorf("a container whose state is unknown: %s; want %s", got, want)
		}
	}
}

func createdC(name string) *observed.Container {
	return &observed.Container{
		ID:        name + "-id",
		Name:      name,
		SandboxID: "s",
		State:     runtimeapi.ContainerState_CONTAINER_CREATED,
		Image:     "img",
	}
}

func unknownC(name string) *observed.Container {
	return &observed.Container{
		ID:        name + "-id",
		Name:      name,
		SandboxID: "s",
		State:     runtimeapi.ContainerState_CONTAINER_UNKNOWN,
		Image:     "img",
	}
}

// stateText is a state in short: what it is, its reason and its exit code.
func stateText(s v1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running"
	case s.Terminated != nil:
		return fmt.Sprintf("terminated %s %d", s.Terminated.Reason, s.Terminated.ExitCode)
	case s.Waiting != nil:
		return strings.TrimSpace("waiting " + s.Waiting.Reason)
	}
	return "-"
}

// TestContainerStates has a container in all its states: the state, the last state, and the count of restarts.
func TestContainerStates(t *testing.T) {
	always, never := v1.RestartPolicyAlways, v1.RestartPolicyNever
	why := func(name, reason string) func(*Inputs) {
		return func(in *Inputs) { in.Reasons = map[string]observed.Reason{name: {Reason: reason}} }
	}
	older := exitedC("c0", 9)
	older.ID = "older"
	again := runningC("c0")
	again.ID, again.RestartCount, again.Attempt = "again", 4, 4
	anew := runningC("c0")
	anew.ID = "anew"
	deleted := pod(always, 0, 1)
	deleted.DeletionTimestamp = &metav1.Time{Time: t0}
	debug := pod(always, 1, 1)
	debug.Spec.EphemeralContainers = []v1.EphemeralContainer{
		{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug"}},
	}
	sidecar := pod(always, 1, 1)
	sidecar.Spec.InitContainers[0].RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
	for name, c := range map[string]struct {
		pod    *v1.Pod
		before *observed.Pod // what the previous status was made from; nil: there is none
		obs    *observed.Pod
		change func(*Inputs)
		of     string
		want   string // state, last state, count of restarts
	}{
		"new": {
			pod(always, 0, 1), nil, nil, nil, "c0", "waiting ContainerCreating, -, 0",
		},
		"new, with init containers": {
			pod(always, 1, 1), nil, nil, nil, "c0", "waiting PodInitializing, -, 0",
		},
		"new init container": {
			pod(always, 1, 1), nil, nil, nil, "i0", "waiting PodInitializing, -, 0",
		},
		"new init container, with a sandbox": {
			pod(always, 1, 1), nil, box(), nil, "i0", "waiting PodInitializing, -, 0",
		},
		"new ephemeral container": {debug, nil, box(), nil, "debug", "waiting PodInitializing, -, 0"},
		"cannot be pulled": {pod(always, 0, 1), nil, box(), why("c0", "ErrImagePull"), "c0",
			"waiting ErrImagePull, -, 0"},
		"created": {
			pod(always, 0, 1), nil, box(createdC("c0")), nil, "c0", "waiting, -, 0",
		},
		"created, cannot be started": {
			pod(always, 0, 1), nil, box(createdC("c0")), why("c0", "RunContainerError"), "c0",
			"waiting RunContainerError, -, 0",
		},
		"runs": {pod(always, 0, 1), nil, box(runningC("c0")), why("c0", "old reason"),
			"c0", "running, -, 0"},
		"ended": {
			pod(always, 0, 1), nil, box(exitedC("c0", 3)), nil, "c0", "terminated Error 3, -, 0",
		},
		"crash loop": {
			pod(always, 0, 1), nil, box(exitedC("c0", 3)), why("c0", "CrashLoopBackOff"), "c0",
			"waiting CrashLoopBackOff, terminated Error 3, 0",
		},
		"crash loop, deleted": {
			deleted, box(exitedC("c0", 3)), box(exitedC("c0", 3)), why("c0", "CrashLoopBackOff"), "c0",
			"terminated Error 3, -, 0",
		},
		"ended for good": {pod(never, 0, 1), nil, box(exitedC("c0", 3)), why("c0", "old reason"),
			"c0", "terminated Error 3, -, 0"},
		"restarted": {
			pod(always, 0, 1), nil, box(again, older), nil, "c0", "running, terminated Error 9, 4",
		},
		"restarted, runtime forgot the last": {pod(always, 0, 1), box(exitedC("c0", 3)), box(again), nil, "c0",
			"running, terminated Error 3, 4"},
		"restarted, runtime forgot the count": {pod(always, 0, 1), box(exitedC("c0", 3)), box(anew), nil, "c0",
			"running, terminated Error 3, 1"},
		"lost": {
			pod(always, 0, 1), box(runningC("c0")), nil, nil, "c0",
			"waiting ContainerCreating, terminated ContainerStatusUnknown 137, 1",
		},
		"lost, with init containers": {pod(always, 1, 1), box(runningC("c0")), box(exitedC("i0", 0)), nil,
			"c0", "waiting PodInitializing, terminated ContainerStatusUnknown 137, 1"},
		"lost, deleted": {
			deleted, box(runningC("c0")), nil, nil, "c0",
			"waiting ContainerCreating, terminated ContainerStatusUnknown 137, 0",
		},
		"lost, cannot be pulled": {pod(always, 0, 1), box(runningC("c0")), nil, why("c0", "ErrImagePull"),
			"c0", "waiting ErrImagePull, terminated ContainerStatusUnknown 137, 1"},
		"ended, and forgotten": {
			pod(always, 0, 1), box(exitedC("c0", 3)), nil, nil, "c0", "terminated Error 3, -, 0",
		},
		"ended, forgotten, cannot be pulled": {
			pod(always, 0, 1), box(exitedC("c0", 3)), nil, why("c0", "ErrImagePull"), "c0",
			"waiting ErrImagePull, terminated Error 3, 0",
		},
		"state unknown, never ran": {
			pod(always, 0, 1), nil, box(unknownC("c0")), nil, "c0", "waiting, -, 0",
		},
		"state unknown, ran": {pod(always, 0, 1), box(runningC("c0")), box(unknownC("c0")), nil, "c0",
			"terminated ContainerStatusUnknown 137, -, 1"},
		"init done": {pod(always, 1, 1), nil, box(exitedC("i0", 0)), why("i0", "old reason"),
			"i0", "terminated Completed 0, -, 0"},
		"init failed": {
			pod(always, 1, 1), nil, box(exitedC("i0", 1)), why("i0", "CrashLoopBackOff"), "i0",
			"waiting CrashLoopBackOff, terminated Error 1, 0",
		},
		"init forgotten while the app runs": {
			pod(always, 1, 1), nil, box(runningC("c0")), nil, "i0", "terminated Completed 0, -, 0",
		},
		"init forgotten, app was created": {
			pod(always, 1, 1), nil, box(createdC("c0")), nil, "i0", "terminated Completed 0, -, 0",
		},
		"init failed and forgotten": {pod(always, 1, 1), box(exitedC("i0", 1)), box(runningC("c0")), nil,
			"i0", "terminated Error 1, -, 0"},
		"sidecar failed": {sidecar, nil, box(exitedC("i0", 1)), why("i0", "CrashLoopBackOff"),
			"i0", "waiting CrashLoopBackOff, terminated Error 1, 0"},
		"sidecar exited with 0": {sidecar, nil, box(exitedC("i0", 0)), why("i0", "CrashLoopBackOff"),
			"i0", "terminated Completed 0, -, 0"},
		"sidecar forgotten while the app runs": {
			sidecar, nil, box(runningC("c0")), nil, "i0", "waiting PodInitializing, -, 0",
		},
	} {
		in := Inputs{Pod: c.pod, Observed: c.obs, Runtime: "containerd", Now: t0}
		if c.before != nil {
			in.Previous = generate(c.pod, c.before)
		}
		if c.change != nil {
			c.change(&in)
		}
		out, _ := Generate(in)
		s := find(slices.Concat(out.InitContainerStatuses, out.ContainerStatuses, out.EphemeralContainerStatuses), c.of)
		if got := fmt.Sprintf("%s, %s, %d", stateText(s.State), stateText(s.LastTerminationState),
			s.RestartCount); got != c.want {
			t.Errorf("%s: %s; want %s", name, got, c.want)
		}
	}
}

// TestResourcesOfContainers: they are reported once the runtime has the container.
func TestResourcesOfContainers(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, 0, 1)
	list := v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m")}
	p.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: list}
	for name, c := range map[string]struct {
		obs       *observed.Pod
		resources *v1.ResourceRequirements
		allocated v1.ResourceList
	}{
		"not there": {box(), nil, nil},
		"created":   {box(createdC("c0")), &v1.ResourceRequirements{Requests: list}, list},
		"runs":      {box(runningC("c0")), &v1.ResourceRequirements{Requests: list}, list},
	} {
		s := generate(p, c.obs).ContainerStatuses[0]
		if diff := cmp.Diff(c.resources, s.Resources); diff != "" {
			t.Errorf("%s: resources mismatch (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(c.allocated, s.AllocatedResources); diff != "" {
			t.Errorf("%s: allocated resources mismatch (-want +got):\n%s", name, diff)
		}
	}
}

// TestOrder: containers and ephemeral containers are sorted by name, init containers are not.
func TestOrder(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, 0, 0)
	for _, name := range []string{"b", "c", "a"} {
		p.Spec.InitContainers = append(p.Spec.InitContainers, v1.Container{Name: "i" + name})
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: name})
		p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers,
			v1.EphemeralContainer{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "e" + name}})
	}
	s := generate(p, nil)
	var got []string
	for _, c := range slices.Concat(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses) {
		got = append(got, c.Name)
	}
	if diff := cmp.Diff([]string{"ib", "ic", "ia", "a", "b", "c", "ea", "eb", "ec"}, got); diff != "" {
		t.Errorf("order mismatch (-want +got):\n%s", diff)
	}
	if c := condition(s, v1.PodReady); c.Message != "containers with unready status: [b c a]" {
		t.Errorf("condition Ready says %q, want the containers in the order of the spec", c.Message)
	}
}

// TestMessagesShareEvenly: a status has 12 KiB of messages, divided by all containers of the spec.
func TestMessagesShareEvenly(t *testing.T) {
	p := pod(v1.RestartPolicyNever, 1, 2)
	p.Spec.EphemeralContainers = []v1.EphemeralContainer{
		{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug"}},
	}
	long := exitedC("c0", 1)
	long.Message = strings.Repeat("ä", 4096)
	s := generate(p, box(long))
	if got, want := s.ContainerStatuses[0].State.Terminated.Message, strings.Repeat("ä", 12<<10/4/2); got != want {
		t.Errorf("message has %d bytes, want %d", len(got), len(want))
	}
}

// TestConclude: what nobody saw the end of has failed, unless it could not start yet.
func TestConclude(t *testing.T) {
	always := v1.RestartPolicyAlways
	const lost, none = "terminated ContainerStatusUnknown 137", "waiting PodInitializing"
	for name, c := range map[string]struct {
		pod    *v1.Pod
		obs    *observed.Pod
		static bool
		want   string
		phase  v1.PodPhase
	}{
		"never started": {pod(always, 0, 2), nil, false, lost + ", " + lost, v1.PodFailed},
		"one never started": {
			pod(always, 0, 2), box(exitedC("c0", 0)), false, "terminated Completed 0, " + lost, v1.PodFailed,
		},
		"ended well": {pod(always, 0, 1), box(exitedC("c0", 0)), false, "terminated Completed 0",
			v1.PodSucceeded},
		"init containers not started": {
			pod(always, 2, 1), box(), false, lost + ", " + none + ", " + none, v1.PodFailed,
		},
		"first init was ended": {
			pod(always, 2, 1), box(exitedC("i0", 137)), false, "terminated Error 137, " + none + ", " + none,
			v1.PodFailed,
		},
		"second init was ended": {
			pod(always, 2, 1), box(exitedC("i1", 137)), false, lost + ", terminated Error 137, " + none, v1.PodFailed,
		},
		"init done, app not started": {
			pod(always, 1, 1), box(exitedC("i0", 0)), false, "terminated Completed 0, " + lost, v1.PodFailed,
		},
		"static, never started": {pod(always, 0, 1), nil, true, lost, v1.PodPending},
		"static, ended": {pod(always, 0, 1), box(exitedC("c0", 0)), true, "terminated Completed 0",
			v1.PodRunning},
	} {
		end := Conclude(c.pod, generate(c.pod, c.obs, func(in *Inputs) { in.Terminated, in.Static = true, c.static }),
			c.static)
		var got []string
		for _, s := range slices.Concat(end.InitContainerStatuses, end.ContainerStatuses) {
			got = append(got, stateText(s.State))
		}
		if text := strings.Join(got, ", "); text != c.want || end.Phase != c.phase {
			t.Errorf("%s: %s, %s; want %s, %s", name, end.Phase, text, c.phase, c.want)
		}
		// An agent that starts again finds the same.
		again := generate(c.pod, c.obs, func(in *Inputs) { in.Previous, in.Static, in.Restored = end, c.static, true })
		if diff := cmp.Diff(end, again); diff != "" && !c.static {
			t.Errorf("%s: generated again (-want +got):\n%s", name, diff)
		}
	}
}

// TestConcludeSidecar: a container that could not be created beside a sidecar has failed with the pod, if the sidecar
// had started.
func TestConcludeSidecar(t *testing.T) {
	p := pod(v1.RestartPolicyNever, 1, 1)
	p.Spec.InitContainers[0].RestartPolicy = new(v1.ContainerRestartPolicyAlways)
	for status, want := range map[v1.ConditionStatus]string{
		v1.ConditionTrue:  "terminated ContainerStatusUnknown 137",
		v1.ConditionFalse: "waiting PodInitializing",
	} {
		before := v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodInitialized, Status: status}}}
		ended := generate(p, box(exitedC("i0", 0)), func(in *Inputs) { in.Terminated, in.Previous = true, before })
		if got := stateText(Conclude(p, ended, false).ContainerStatuses[0].State); got != want {
			t.Errorf("state after the end of a sidecar with Initialized %s = %s, want %s", status, got, want)
		}
	}
}

func TestConditions(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, 1, 2)
	s := generate(p, box(runningC("i0")))
	if c := condition(s, v1.PodInitialized); c.Status != v1.ConditionFalse || c.Reason != "ContainersNotInitialized" ||
		c.Message != "containers with incomplete status: [i0]" {
		t.Errorf("condition Initialized is %+v, want False, ContainersNotInitialized of i0", c)
	}
	if c := condition(s, v1.PodReady); c.Status != v1.ConditionFalse || c.Reason != "ContainersNotReady" ||
		c.Message != "containers with unready status: [c0 c1]" {
		t.Errorf("condition Ready is %+v, want False, ContainersNotReady of c0 and c1", c)
	}
	up := generate(p, box(exitedC("i0", 0), runningC("c0"), runningC("c1")), func(in *Inputs) {
		in.Previous, in.Now = s, t0.Add(time.Hour)
	})
	for _, c := range up.Conditions {
		if c.Status != v1.ConditionTrue || c.ObservedGeneration != 3 {
			t.Errorf("%+v, want True", c)
		}
	}
	if c := condition(up, v1.PodScheduled); !c.LastTransitionTime.Time.Equal(t0.Add(time.Minute)) {
		t.Errorf("transition of an unchanged condition = %v, want %v", c.LastTransitionTime, t0.Add(time.Minute))
	}
	if c := condition(up, v1.PodReady); !c.LastTransitionTime.Time.Equal(t0.Add(time.Hour)) {
		t.Errorf("transition of a changed condition = %v, want %v", c.LastTransitionTime, t0.Add(time.Hour))
	}
	end := generate(pod(v1.RestartPolicyNever, 0, 1), box(exitedC("c0", 0)))
	if c := condition(end, v1.PodReady); c.Status != v1.ConditionFalse || c.Reason != "PodCompleted" {
		t.Errorf("condition Ready is %+v, want False, PodCompleted", c)
	}
	// What was initialized once remains so when the init containers run again.
	again := generate(p, box(runningC("i0")), func(in *Inputs) { in.Previous = up })
	if c := condition(again, v1.PodInitialized); c.Status != v1.ConditionTrue {
		t.Errorf("condition Initialized is %+v after it was True, want True", c)
	}
	if c := condition(again, v1.PodReady); c.Status != v1.ConditionFalse {
		t.Errorf("condition Ready is %+v while init containers run again, want False", c)
	}
}

func TestAddresses(t *testing.T) {
	plain, host := pod(v1.RestartPolicyAlways, 0, 1), pod(v1.RestartPolicyAlways, 0, 1)
	host.Spec.HostNetwork = true
	dead := box()
	dead.Sandboxes[0].Ready, dead.Sandboxes[0].IPs = false, nil
	both := box()
	both.Sandboxes[0].IPs = []string{"fd00::2", "10.0.0.2", "10.0.0.3", "nonsense"}
	before := func(in *Inputs) { in.Previous = generate(plain, box()) }
	for name, c := range map[string]struct {
		pod    *v1.Pod
		obs    *observed.Pod
		change func(*Inputs)
		want   string // podIPs; hostIPs
	}{
		"no sandbox":    {plain, nil, nil, "; 192.0.2.1"},
		"sandbox":       {plain, box(), nil, "10.0.0.2; 192.0.2.1"},
		"both families": {plain, both, nil, "10.0.0.2 fd00::2; 192.0.2.1"},
		"both families, IPv6 first": {plain, both, func(in *Inputs) {
			in.IPv6First = true
		}, "fd00::2 10.0.0.2; 192.0.2.1"},
		"sandbox died":             {plain, dead, before, "10.0.0.2; 192.0.2.1"},
		"sandbox died at the boot": {plain, dead, func(in *Inputs) { before(in); in.Restored = true }, "; 192.0.2.1"},
		"ended": {plain, dead, func(in *Inputs) {
			before(in)
			in.Terminated = true
		}, "10.0.0.2; 192.0.2.1"},
		"ended, nothing is left": {plain, nil, func(in *Inputs) {
			before(in)
			in.Terminated = true
		}, "10.0.0.2; 192.0.2.1"},
		"host network, no sandbox": {host, nil, nil, "192.0.2.1; 192.0.2.1"},
		"host network":             {host, box(), nil, "192.0.2.1; 192.0.2.1"},
		"host network, two": {host, nil, func(in *Inputs) { in.HostIPs = []string{"192.0.2.1", "fd00::1"} },
			"192.0.2.1 fd00::1; 192.0.2.1 fd00::1"},
		"node without a network": {host, nil, func(in *Inputs) {
			in.Previous = generate(host, nil)
			in.HostIPs = nil
		}, "192.0.2.1; 192.0.2.1"},
		"rejected": {plain, nil, func(in *Inputs) { in.Rejected = &observed.Reason{} }, "; "},
	} {
		s := generate(c.pod, c.obs, func(in *Inputs) {
			if c.change != nil {
				c.change(in)
			}
		})
		var pods, hosts []string
		for _, ip := range s.PodIPs {
			pods = append(pods, ip.IP)
		}
		for _, ip := range s.HostIPs {
			hosts = append(hosts, ip.IP)
		}
		if got := strings.Join(pods, " ") + "; " + strings.Join(hosts, " "); got != c.want ||
			s.PodIP != strings.Join(pods[:min(1, len(pods))], "") ||
			s.HostIP != strings.Join(hosts[:min(1, len(hosts))], "") {
			t.Errorf("%s: %s, the first %q and %q; want %s", name, got, s.PodIP, s.HostIP, c.want)
		}
	}
}

// TestReadyToStartContainers: there is a sandbox in which containers can be started, and no other.
func TestReadyToStartContainers(t *testing.T) {
	dead, two, without, other := box(), box(), box(), box()
	dead.Sandboxes[0].Ready = false
	two.Sandboxes = append(two.Sandboxes, &observed.Sandbox{ID: "t", Ready: true})
	without.Sandboxes[0].IPs = nil
	other.Sandboxes[0].HostNetwork = true
	for name, c := range map[string]struct {
		obs  *observed.Pod
		want v1.ConditionStatus
	}{
		"none": {nil, v1.ConditionFalse}, "ready": {box(), v1.ConditionTrue}, "dead": {dead, v1.ConditionFalse},
		"two":                {two, v1.ConditionFalse},
		"without an address": {without, v1.ConditionFalse}, "on another network": {other, v1.ConditionFalse},
	} {
		if got := condition(generate(pod(v1.RestartPolicyAlways, 0, 1), c.obs), v1.PodReadyToStartContainers).
			Status; got != c.want {
			t.Errorf("%s: PodReadyToStartContainers = %s, want %s", name, got, c.want)
		}
	}
}

// long has TestProperties go through ten times as many lives.
var long = flag.Bool("long", false, "go through all random lives of pods, not only the first ones")

// TestProperties: over random lives of a pod, Generate is its own fixed point, final phases stay, and restart
// counts never go down.
func TestProperties(t *testing.T) {
	lives := 300
	if *long {
		lives = 3000
	}
	r := rand.New(rand.NewPCG(1, 2))
	policies := []v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever}
	for life := range lives {
		p := pod(policies[r.IntN(3)], r.IntN(3), 1+r.IntN(2))
		if r.IntN(4) == 0 && len(p.Spec.InitContainers) > 0 {
			p.Spec.InitContainers[0].RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
		}
		var last v1.PodStatus
		for step := range 6 {
			in := Inputs{
				Pod:        p,
				Observed:   randomObserved(r, p, step),
				Runtime:    "containerd",
				Previous:   last,
				HostIPs:    []string{"192.0.2.1"},
				Now:        t0.Add(time.Duration(step) * time.Minute),
				Terminated: r.IntN(8) == 0,
			}
			if in.Terminated && in.Observed != nil { // then nothing runs
				in.Observed.Sandboxes[0].Ready = false
				for _, o := range in.Observed.Containers {
					o.State = runtimeapi.ContainerState_CONTAINER_EXITED
				}
			}
			out, _ := Generate(in)
			if in.Terminated {
				out = Conclude(p, out, false)
			}
			in.Previous, in.Now = out, in.Now.Add(time.Second)
			again, _ := Generate(in)
			if !reflect.DeepEqual(out, again) { // it takes a tenth of the time of cmp.Diff
				t.Fatalf("life %d: not a fixed point (-first +second):\n%s", life, cmp.Diff(out, again))
			}
			if Terminal(last.Phase) && out.Phase != last.Phase {
				t.Fatalf("life %d: phase is %s, want %s, which is final", life, out.Phase, last.Phase)
			}
			for i, c := range last.ContainerStatuses {
				if got := out.ContainerStatuses[i].RestartCount; got < c.RestartCount {
					t.Fatalf("life %d: restart count is %d, want at least %d", life, got, c.RestartCount)
				}
			}
			last = out
		}
	}
}

func randomObserved(r *rand.Rand, p *v1.Pod, step int) *observed.Pod {
	if r.IntN(6) == 0 {
		return nil
	}
	obs := box()
	obs.Sandboxes[0].Ready = r.IntN(5) > 0
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for _, c := range list {
			for range r.IntN(3) {
				o := runningC(c.Name)
				if r.IntN(2) == 0 {
					o = exitedC(c.Name, int32(r.IntN(2)))
				}
				o.ID = fmt.Sprintf("%s-%d-%d", c.Name, step, r.IntN(3))
				o.RestartCount = int32(r.IntN(4))
				obs.Containers = append(obs.Containers, o)
			}
		}
	}
	return obs
}

type told struct{ list []string }

func (r *told) PodStatus(p *v1.Pod, s v1.PodStatus) {
	r.list = append(r.list, p.Name+" "+string(s.Phase))
}

func TestManagerTellsChangesOnly(t *testing.T) {
	r := &told{}
	m := NewManager(r)
	p := pod(v1.RestartPolicyAlways, 0, 1)
	m.Restore(map[types.UID]v1.PodStatus{"1": {Phase: v1.PodPending}})
	m.Set(p, v1.PodStatus{Phase: v1.PodPending})
	m.Set(p, v1.PodStatus{Phase: v1.PodRunning})
	m.Set(p, v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{}})
	m.Restore(map[types.UID]v1.PodStatus{"1": {Phase: v1.PodPending}})
	if got := strings.Join(r.list, ","); got != "p Running" || m.Phase("1") != v1.PodRunning {
		t.Errorf("told %q, phase %s; want \"p Running\", Running", got, m.Phase("1"))
	}
	m.Delete("1")
	if got := m.Phase("1"); got != "" {
		t.Errorf("Phase(1) after Delete = %q, want \"\"", got)
	}
}
