package status

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/observed"
)

var t0 = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func pod(policy v1.RestartPolicy, inits, mains int) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "1", Generation: 3}, Spec: v1.PodSpec{RestartPolicy: policy}}
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
	return &observed.Pod{UID: "1", Detailed: true, Containers: containers, Sandboxes: []*observed.Sandbox{{ID: "s", Ready: true, IPs: []string{"10.0.0.2"}}}}
}

func runningC(name string) *observed.Container {
	return &observed.Container{ID: name + "-id", Name: name, SandboxID: "s", State: runtimeapi.ContainerState_CONTAINER_RUNNING, Image: "img", ImageRef: "sha256:1", StartedAt: t0}
}

func exitedC(name string, code int32) *observed.Container {
	reason := "Completed"
	if code != 0 {
		reason = "Error"
	}
	return &observed.Container{ID: name + "-id", Name: name, SandboxID: "s", State: runtimeapi.ContainerState_CONTAINER_EXITED, Image: "img", ImageRef: "sha256:1",
		ExitCode: code, Reason: reason, StartedAt: t0, FinishedAt: t0.Add(time.Second)}
}

func generate(p *v1.Pod, obs *observed.Pod, change ...func(*Inputs)) v1.PodStatus {
	in := Inputs{Pod: p, Observed: obs, Runtime: "containerd", HostIPs: []string{"192.0.2.1"}, Now: t0.Add(time.Minute)}
	for _, c := range change {
		c(&in)
	}
	return Generate(in)
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
	done := func(in *Inputs) { in.Terminated = true }
	for name, c := range map[string]struct {
		pod    *v1.Pod
		obs    *observed.Pod
		change func(*Inputs)
		want   v1.PodPhase
	}{
		"nothing yet":           {pod(v1.RestartPolicyAlways, 0, 1), nil, nil, v1.PodPending},
		"sandbox alone":         {pod(v1.RestartPolicyAlways, 0, 1), box(), nil, v1.PodPending},
		"init runs":             {pod(v1.RestartPolicyAlways, 1, 1), box(runningC("i0")), nil, v1.PodPending},
		"init failed, Never":    {pod(v1.RestartPolicyNever, 1, 1), box(exitedC("i0", 1)), nil, v1.PodFailed},
		"init failed, Always":   {pod(v1.RestartPolicyAlways, 1, 1), box(exitedC("i0", 1)), nil, v1.PodPending},
		"runs":                  {pod(v1.RestartPolicyAlways, 0, 2), box(runningC("c0"), runningC("c1")), nil, v1.PodRunning},
		"one runs, one waits":   {pod(v1.RestartPolicyAlways, 0, 2), box(runningC("c0")), nil, v1.PodRunning},
		"well ended, Never":     {pod(v1.RestartPolicyNever, 0, 1), box(exitedC("c0", 0)), nil, v1.PodSucceeded},
		"well ended, OnFailure": {pod(v1.RestartPolicyOnFailure, 0, 1), box(exitedC("c0", 0)), nil, v1.PodSucceeded},
		"well ended, Always":    {pod(v1.RestartPolicyAlways, 0, 1), box(exitedC("c0", 0)), nil, v1.PodRunning},
		"failed, Never":         {pod(v1.RestartPolicyNever, 0, 1), box(exitedC("c0", 1)), nil, v1.PodFailed},
		"failed, OnFailure":     {pod(v1.RestartPolicyOnFailure, 0, 1), box(exitedC("c0", 1)), nil, v1.PodRunning},
		"half ended, Never":     {pod(v1.RestartPolicyNever, 0, 2), box(exitedC("c0", 1), runningC("c1")), nil, v1.PodRunning},
		"one failed, Never":     {pod(v1.RestartPolicyNever, 0, 2), box(exitedC("c0", 1), exitedC("c1", 0)), nil, v1.PodFailed},
		"ended by us, well":     {pod(v1.RestartPolicyAlways, 0, 1), box(exitedC("c0", 0)), done, v1.PodSucceeded},
		"ended by us, killed":   {pod(v1.RestartPolicyAlways, 0, 1), box(exitedC("c0", 137)), done, v1.PodFailed},
		"ended, never started":  {pod(v1.RestartPolicyAlways, 0, 1), nil, done, v1.PodFailed},
		"rejected":              {pod(v1.RestartPolicyAlways, 0, 1), nil, func(in *Inputs) { in.Rejected = &observed.Reason{Reason: "OutOfcpu", Message: "m"} }, v1.PodFailed},
		"what has ended stays so": {pod(v1.RestartPolicyNever, 0, 1), nil, func(in *Inputs) {
			in.Previous = generate(pod(v1.RestartPolicyNever, 0, 1), box(exitedC("c0", 0)))
		}, v1.PodSucceeded},
	} {
		change := c.change
		if change == nil {
			change = func(*Inputs) {}
		}
		if got := generate(c.pod, c.obs, change).Phase; got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestContainerStates(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, 1, 1)
	s := generate(p, nil)
	if w := s.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "PodInitializing" {
		t.Errorf("main before init: %+v, want PodInitializing", s.ContainerStatuses[0].State)
	}
	s = generate(pod(v1.RestartPolicyAlways, 0, 1), nil, func(in *Inputs) {
		in.Reasons = map[string]observed.Reason{"c0": {Reason: "ErrImagePull", Message: "no"}}
	})
	if diff := cmp.Diff(v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no"}}, s.ContainerStatuses[0].State); diff != "" {
		t.Errorf("state mismatch (-want +got):\n%s", diff)
	}
	s = generate(pod(v1.RestartPolicyAlways, 0, 1), box(exitedC("c0", 3)), func(in *Inputs) {
		in.Reasons = map[string]observed.Reason{"c0": {Reason: "CrashLoopBackOff", Message: "back-off 10s"}}
	})
	c := s.ContainerStatuses[0]
	if c.State.Waiting == nil || c.State.Waiting.Reason != "CrashLoopBackOff" || c.LastTerminationState.Terminated.ExitCode != 3 || s.Phase != v1.PodRunning {
		t.Errorf("crash loop: %+v, phase %s; want CrashLoopBackOff after exit code 3, Running", c, s.Phase)
	}
	older := exitedC("c0", 9)
	older.ID = "older"
	now := runningC("c0")
	now.RestartCount, now.Attempt = 4, 4
	s = generate(pod(v1.RestartPolicyAlways, 0, 1), box(now, older))
	c = s.ContainerStatuses[0]
	if c.RestartCount != 4 || c.LastTerminationState.Terminated == nil || c.LastTerminationState.Terminated.ContainerID != "containerd://older" || c.ContainerID != "containerd://c0-id" {
		t.Errorf("restarted: %+v, want 4 restarts, and what ended before", c)
	}
}

// TestLostContainer: what ran and is gone, and will not come back, ends in the kubelet's words.
func TestLostContainer(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, 0, 1)
	before := generate(p, box(runningC("c0")))
	s := generate(p, nil, func(in *Inputs) { in.Previous, in.Terminated = before, true })
	if end := s.ContainerStatuses[0].State.Terminated; end == nil || end.Reason != "ContainerStatusUnknown" || end.ExitCode != 137 {
		t.Errorf("state %+v, want terminated, ContainerStatusUnknown, 137", s.ContainerStatuses[0].State)
	}
	s = generate(p, nil, func(in *Inputs) { in.Previous = before })
	if c := s.ContainerStatuses[0]; c.State.Waiting == nil || c.LastTerminationState.Terminated == nil {
		t.Errorf("it will be started again: %+v, want it waiting, and what ended before", c)
	}
}

func TestConditions(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, 1, 2)
	s := generate(p, box(runningC("i0")))
	if c := condition(s, v1.PodInitialized); c.Status != v1.ConditionFalse || c.Reason != "ContainersNotInitialized" || c.Message != "containers with incomplete status: [i0]" {
		t.Errorf("condition Initialized is %+v, want False, ContainersNotInitialized of i0", c)
	}
	if c := condition(s, v1.PodReady); c.Status != v1.ConditionFalse || c.Reason != "ContainersNotReady" || c.Message != "containers with unready status: [c0 c1]" {
		t.Errorf("condition Ready is %+v, want False, ContainersNotReady of c0 and c1", c)
	}
	up := generate(p, box(exitedC("i0", 0), runningC("c0"), runningC("c1")), func(in *Inputs) { in.Previous, in.Now = s, t0.Add(time.Hour) })
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
}

func TestAddresses(t *testing.T) {
	s := generate(pod(v1.RestartPolicyAlways, 0, 1), box(runningC("c0")))
	if s.PodIP != "10.0.0.2" || s.HostIP != "192.0.2.1" || len(s.HostIPs) != 1 {
		t.Errorf("%s %s %v, want \"10.0.0.2\", \"192.0.2.1\", one", s.PodIP, s.HostIP, s.HostIPs)
	}
	p := pod(v1.RestartPolicyAlways, 0, 1)
	p.Spec.HostNetwork = true
	if s := generate(p, box(runningC("c0"))); s.PodIP != "192.0.2.1" {
		t.Errorf("host network: %s, want \"192.0.2.1\"", s.PodIP)
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
			out := Generate(in)
			in.Previous, in.Now = out, in.Now.Add(time.Second)
			if again := Generate(in); !reflect.DeepEqual(out, again) { // it takes a tenth of the time of cmp.Diff
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
