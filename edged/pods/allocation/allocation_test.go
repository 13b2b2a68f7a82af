package allocation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cgroups"
	"github.com/edgecore-io/edgecore/edged/pods/resize"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// node is a node of two cpus with a Manager whose other parts are maps.
type node struct {
	*Manager
	sync.Mutex
	statuses map[types.UID]v1.PodStatus
	desired  map[types.UID]*v1.Pod
	refusal  *observed.Reason
}

func newNode() *node {
	n := &node{statuses: map[types.UID]v1.PodStatus{}, desired: map[types.UID]*v1.Pod{}}
	n.Manager = New(Options{
		Cgroups:  cgroups.New(cgroups.Options{}),
		Recorder: events.New("n", nil),
		Pods:     pods{n},
		Enqueue:  func(types.UID) {},
		Freed:    func() {},
	})
	n.SetAdmission(n)
	return n
}

// pods are the pods of a node.
type pods struct{ n *node }

func (p pods) Status(uid types.UID) v1.PodStatus { return p.n.statuses[uid] }
func (p pods) Active(uid types.UID) *v1.Pod      { return p.n.desired[uid] }

func (n *node) AdmitResize(pod *v1.Pod) *observed.Reason {
	if n.refusal != nil {
		return n.refusal
	}
	var others []*v1.Pod
	for uid, other := range n.desired {
		if uid != pod.UID {
			others = append(others, n.Allocated(other))
		}
	}
	return resize.Admit(pod, v1.ResourceList{v1.ResourceCPU: resource.MustParse("2")}, others)
}

// resizing returns a node, and a pod with one running container that asks for some cpu.
func resizing(cpu string) (*node, *v1.Pod, *observed.Pod) {
	obs := &observed.Pod{UID: "1", Containers: []*observed.Container{{
		ID:    "x",
		Name:  "main",
		State: runtimeapi.ContainerState_CONTAINER_RUNNING,
	}}}
	return newNode(), asking(cpu), obs
}

func asking(cpu string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "1"}}
	pod.Spec.Containers = []v1.Container{
		{
			Name: "main", Resources: v1.ResourceRequirements{
				Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)},
			},
		},
	}
	return pod
}

// TestAllocate: a pod keeps what it was allocated until what it asks for fits; what it has is known after a restart.
func TestAllocate(t *testing.T) {
	e, pod, obs := resizing("1")
	cpuOf := func(pod *v1.Pod) string { return pod.Spec.Containers[0].Resources.Requests.Cpu().String() }
	conditions := func(e *node) (out []string) {
		_, list := e.Status(e.Allocated(pod), obs)
		for _, c := range list {
			out = append(out, string(c.Type)+" "+c.Reason)
		}
		return out
	}
	for _, step := range []struct {
		asks, gets string
		conditions []string
		changes    int
	}{
		{"1", "1", nil, 0},
		{"3", "1", []string{"PodResizePending Infeasible"}, 0},
		{"2", "2", []string{"PodResizeInProgress "}, 1},
		{"4", "2", []string{"PodResizePending Infeasible", "PodResizeInProgress "}, 1},
	} {
		pod = asking(step.asks)
		got := e.Allocate(pod)
		if list, _ := e.changes(got, obs); cpuOf(got) != step.gets || len(list) != step.changes {
			t.Errorf("asks for %s: gets %s, %d changes; want %s, %d", step.asks, cpuOf(got), len(list), step.gets,
				step.changes)
		}
		if diff := cmp.Diff(step.conditions, conditions(e)); diff != "" {
			t.Errorf("asks for %s: conditions mismatch (-want +got):\n%s", step.asks, diff)
		}
	}
	// Another agent finds in the status what was allocated and with what the container runs.
	again, _, _ := resizing("1")
	again.statuses["1"] = v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{
		Name:               "main",
		ContainerID:        "containerd://x",
		AllocatedResources: asking("2").Spec.Containers[0].Resources.Requests,
		Resources:          &asking("1").Spec.Containers[0].Resources,
	}}}
	got := again.Allocate(asking("4"))
	left, _ := again.changes(got, obs)
	if cpuOf(got) != "2" || len(left) != 1 || left[0].from.Requests.Cpu().String() != "1" {
		t.Errorf("after a restart: %s, %+v; want 2, and one change from 1", cpuOf(got), left)
	}
	if probes, err := again.Resize(context.Background(), asking("1"), obs, nil); err != nil || len(probes) != 0 {
		t.Errorf("a container that has what it was allocated: %v, %v; want no probes", probes, err)
	}
}

// TestResizeConditions: conditions keep the generation of their resize and survive a restart of the agent, and an event
// is sent when the reason or the generation is another.
func TestResizeConditions(t *testing.T) {
	e, pod, obs := resizing("1")
	e.Allocate(pod)
	ask := func(cpu string, generation int64) *v1.Pod {
		pod := asking(cpu)
		pod.Generation = generation
		return e.Allocate(pod)
	}
	told := func() (out []string) {
		_, list := e.Status(e.Allocated(pod), obs)
		for _, c := range list {
			out = append(out, fmt.Sprint(c.Type, " ", c.Reason, " ", c.ObservedGeneration, " ", c.Message))
		}
		return out
	}
	events := func() (out []string) {
		for _, ev := range e.opts.Recorder.List() {
			reason, _, _ := strings.Cut(ev.Message, ":")
			out = append(out, ev.Reason+" "+reason)
		}
		slices.Sort(out)
		return out
	}
	ask("3", 2)
	ask("3", 2)
	want := []string{
		"PodResizePending Infeasible 2 Node didn't have enough capacity: cpu, requested: 3000, capacity: 2000",
	}
	if diff := cmp.Diff(want, told()); diff != "" {
		t.Errorf("an infeasible resize: conditions mismatch (-want +got):\n%s", diff)
	}
	ask("2", 3)
	got := ask("2", 4) // changed by something else
	if diff := cmp.Diff([]string{"PodResizeInProgress  3 "}, told()); diff != "" {
		t.Errorf("a resize that was allocated: conditions mismatch (-want +got):\n%s", diff)
	}
	if err := e.Finish(t.Context(), got, obs, errors.New("no")); err != nil {
		t.Errorf("Finish() with an error that is the caller's: got %v, want nil", err)
	}
	if diff := cmp.Diff([]string{"PodResizeInProgress Error 3 no"}, told()); diff != "" {
		t.Errorf("a resize that failed: conditions mismatch (-want +got):\n%s", diff)
	}
	// How much memory is in use is no news.
	for _, used := range []uint64{7, 19, 200} {
		failed := resize.CheckMemory([]resize.Decrease{{Name: "app", Limit: 5, Used: &used}})
		if err := e.Finish(t.Context(), got, obs, failed); err != nil {
			t.Errorf("Finish() with an error that is the caller's: got %v, want nil", err)
		}
	}
	want = []string{"PodResizeInProgress Error 3 cannot decrease memory limits: " +
		`attempting to set container "app" memory limit (5) below current usage (7)`}
	if diff := cmp.Diff(want, told()); diff != "" {
		t.Errorf("a decrease below use: conditions mismatch (-want +got):\n%s", diff)
	}
	_, conditions := e.Status(got, obs)
	again, _, _ := resizing("1")
	again.statuses["1"] = v1.PodStatus{Conditions: conditions}
	if _, list := again.Status(got, obs); cmp.Diff(conditions, list) != "" {
		t.Errorf("after a restart: conditions %+v, want %+v", list, conditions)
	}
	obs.Containers[0].ID = "y" // it runs with what was allocated
	if err := e.Finish(t.Context(), got, obs, nil); err != nil || told() != nil {
		t.Errorf("a resize that is done: %v, conditions %q; want none", err, told())
	}
	wantEvents := []string{
		"ResizeCompleted Pod resize completed", "ResizeError Pod resize error", "ResizeError Pod resize error",
		"ResizeInfeasible Pod resize Infeasible",
		"ResizeStarted Pod resize started",
	}
	if diff := cmp.Diff(wantEvents, events()); diff != "" {
		t.Errorf("events mismatch (-want +got):\n%s", diff)
	}
}

// TestResizeOfPod: a pod's own limit changes, and with it those of the containers that have none.
func TestResizeOfPod(t *testing.T) {
	e, _, obs := resizing("1")
	of := func(limit string) *v1.Pod {
		pod := asking("1")
		pod.Spec.Resources = &v1.ResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")},
			Limits:   v1.ResourceList{v1.ResourceCPU: resource.MustParse(limit)},
		}
		return pod
	}
	check := func(what string, pod *v1.Pod, changes int, podLevel bool, runs string) {
		t.Helper()
		list, changed := e.changes(pod, obs)
		running, _ := e.Status(pod, obs)
		r := running[resize.Whole]
		if len(list) != changes || changed != podLevel || r.Limits.Cpu().String() != runs {
			t.Errorf("%s: %d changes, of the pod %v, it runs with %s; want %d, %v, %s", what, len(list), changed,
				r.Limits.Cpu(), changes, podLevel, runs)
		}
	}
	check("at first", e.Allocate(of("2")), 0, false, "2")
	pod := e.Allocate(of("1500m"))
	check("allocated", pod, 1, true, "2")
	obs.Containers[0].ID = "y" // started again with the pod's new limit
	check("the container has it", pod, 0, true, "2")
	if err := e.Finish(t.Context(), pod, obs, nil); err != nil {
		t.Fatal(err)
	}
	check("done", pod, 0, false, "1500m")
}

// TestDeferredResizes: what one pod gives back goes to those that wait, in order of their priority.
func TestDeferredResizes(t *testing.T) {
	e := newNode()
	set := func(name, cpu string, priority int32) *v1.Pod {
		pod := asking(cpu)
		pod.Name, pod.UID, pod.Spec.Priority = name, types.UID(name), &priority
		e.desired[pod.UID] = pod
		return e.Allocate(pod)
	}
	for _, name := range []string{"a", "b", "c"} {
		set(name, "500m", 0)
	}
	set("b", "1200m", 1) // 700m more, of 500m
	set("c", "1200m", 2)
	set("a", "600m", 3)
	set("a", "100m", 3)
	e.Retry(nil)
	want := map[string]string{"a": "100m", "b": "500m", "c": "1200m"}
	got := map[string]string{}
	for name := range want {
		got[name] = e.Allocated(e.desired[types.UID(name)]).Spec.Containers[0].Resources.Requests.Cpu().String()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("allocated cpu mismatch (-want +got):\n%s", diff)
	}
}

// TestRefusedByNode: a refusal of the node defers a resize, and Retry allocates it when the node admits it.
func TestRefusedByNode(t *testing.T) {
	n, pod, _ := resizing("1")
	n.Allocate(pod)
	n.refusal = &observed.Reason{Reason: "NodePressure", Message: "The node had condition: [DiskPressure]. "}
	got := n.Allocate(asking("2"))
	pending := n.pods["1"].pending
	if got.Spec.Containers[0].Resources.Requests.Cpu().String() != "1" || pending == nil ||
		pending.Reason != "Deferred" ||
		pending.Message != n.refusal.Message {
		t.Errorf("cpu under pressure = %v, condition %+v; want 1, Deferred with the node's message",
			got.Spec.Containers[0].Resources.Requests.Cpu(), pending)
	}
	n.refusal = nil
	n.desired["1"] = asking("2")
	n.Retry(nil)
	if got := n.Allocated(asking("2")); got.Spec.Containers[0].Resources.Requests.Cpu().String() != "2" {
		t.Errorf("cpu after the pressure = %v, want 2", got.Spec.Containers[0].Resources.Requests.Cpu())
	}
	n.Forget("1")
	if len(n.pods) > 0 {
		t.Errorf("after Forget: %v, want nothing", n.pods)
	}
}

// TestUnstored: an admitted resize is unstored until its status is stored, and so is one that is admitted meanwhile.
func TestUnstored(t *testing.T) {
	e, pod, _ := resizing("1")
	if _, unstored := e.Unstored(pod.UID); unstored {
		t.Error("a pod without a resize is unstored, want it not to be")
	}
	e.Allocate(pod)
	e.Allocate(asking("2"))
	first, unstored := e.Unstored(pod.UID)
	if !unstored {
		t.Error("an admitted resize is not unstored, want it to be")
	}
	e.Allocate(asking("1500m")) // while the status is stored
	e.Stored(pod.UID, first)
	second, unstored := e.Unstored(pod.UID)
	if !unstored {
		t.Error("the second resize is not unstored, want it to be")
	}
	e.Stored(pod.UID, second)
	if _, unstored := e.Unstored(pod.UID); unstored {
		t.Error("a stored resize is unstored, want it not to be")
	}
	e.Allocate(asking("3")) // which the node does not have
	if _, unstored := e.Unstored(pod.UID); unstored {
		t.Error("a refused resize is unstored, want it not to be")
	}
}
