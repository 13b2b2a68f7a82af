package edged

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/cgroups"
	"github.com/edgecore-io/edgecore/edged/events"
	"github.com/edgecore-io/edgecore/edged/eviction"
	"github.com/edgecore-io/edgecore/edged/observed"
	"github.com/edgecore-io/edgecore/edged/podworker"
	"github.com/edgecore-io/edgecore/edged/resize"
	"github.com/edgecore-io/edgecore/edged/status"
)

type noReports struct{}

func (noReports) PodStatus(*v1.Pod, v1.PodStatus) {}

// resizing is an agent of two cpus, and a pod with one container that asks for some.
func resizing(cpu string) (*Edged, *v1.Pod, *observed.Pod) {
	e := New(Options{Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("2")}}).next()
	e.statuses, e.recorder, e.cgroups = status.NewManager(noReports{}), events.New("n", nil), cgroups.New(cgroups.Options{})
	e.evictions = eviction.New(eviction.Options{})
	obs := &observed.Pod{UID: "1", Containers: []*observed.Container{{ID: "x", Name: "main", State: runtimeapi.ContainerState_CONTAINER_RUNNING}}}
	return e, asking(cpu), obs
}

func asking(cpu string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "1"}}
	pod.Spec.Containers = []v1.Container{{Name: "main", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}}}}
	return pod
}

// TestAllocate: a pod keeps what it was allocated until what it asks for fits; what it has is known after a restart.
func TestAllocate(t *testing.T) {
	e, pod, obs := resizing("1")
	cpuOf := func(pod *v1.Pod) string { return pod.Spec.Containers[0].Resources.Requests.Cpu().String() }
	conditions := func(e *Edged) (out []string) {
		_, list := e.sizeOf(e.allocated(pod), obs)
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
		got := e.allocate(pod)
		if list, _ := e.changes(got, obs); cpuOf(got) != step.gets || len(list) != step.changes {
			t.Errorf("asks for %s: gets %s, %d changes; want %s, %d", step.asks, cpuOf(got), len(list), step.gets, step.changes)
		}
		if diff := cmp.Diff(step.conditions, conditions(e)); diff != "" {
			t.Errorf("asks for %s: conditions mismatch (-want +got):\n%s", step.asks, diff)
		}
	}
	// Another agent finds in the status what was allocated and with what the container runs.
	again, _, _ := resizing("1")
	again.statuses.Set(pod, v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{
		Name: "main", ContainerID: "containerd://x", AllocatedResources: asking("2").Spec.Containers[0].Resources.Requests, Resources: &asking("1").Spec.Containers[0].Resources,
	}}})
	got := again.allocate(asking("4"))
	left, _ := again.changes(got, obs)
	if cpuOf(got) != "2" || len(left) != 1 || left[0].from.Requests.Cpu().String() != "1" {
		t.Errorf("after a restart: %s, %+v; want 2, and one change from 1", cpuOf(got), left)
	}
	if probes, err := again.resize(context.Background(), asking("1"), obs, nil); err != nil || len(probes) != 0 {
		t.Errorf("a container that has what it was allocated: %v, %v; want no probes", probes, err)
	}
}

// TestResizeConditions: conditions keep the generation of their resize and survive a restart of the agent, and an event
// is sent when the reason or the generation is another.
func TestResizeConditions(t *testing.T) {
	e, pod, obs := resizing("1")
	e.allocate(pod)
	ask := func(cpu string, generation int64) *v1.Pod {
		pod := asking(cpu)
		pod.Generation = generation
		return e.allocate(pod)
	}
	told := func() (out []string) {
		_, list := e.sizeOf(e.allocated(pod), obs)
		for _, c := range list {
			out = append(out, fmt.Sprint(c.Type, " ", c.Reason, " ", c.ObservedGeneration, " ", c.Message))
		}
		return out
	}
	events := func() (out []string) {
		for _, ev := range e.recorder.List() {
			reason, _, _ := strings.Cut(ev.Message, ":")
			out = append(out, ev.Reason+" "+reason)
		}
		slices.Sort(out)
		return out
	}
	ask("3", 2)
	ask("3", 2)
	want := []string{"PodResizePending Infeasible 2 Node didn't have enough capacity: cpu, requested: 3000, capacity: 2000"}
	if diff := cmp.Diff(want, told()); diff != "" {
		t.Errorf("an infeasible resize: conditions mismatch (-want +got):\n%s", diff)
	}
	ask("2", 3)
	got := ask("2", 4) // changed by something else
	if diff := cmp.Diff([]string{"PodResizeInProgress  3 "}, told()); diff != "" {
		t.Errorf("a resize that was allocated: conditions mismatch (-want +got):\n%s", diff)
	}
	if err := e.resized(t.Context(), got, obs, errors.New("no")); err != nil {
		t.Errorf("resized() with an error that is the caller's: got %v, want nil", err)
	}
	if diff := cmp.Diff([]string{"PodResizeInProgress Error 3 no"}, told()); diff != "" {
		t.Errorf("a resize that failed: conditions mismatch (-want +got):\n%s", diff)
	}
	// How much memory is in use is no news.
	for _, used := range []uint64{7, 19, 200} {
		failed := resize.CheckMemory([]resize.Decrease{{Name: "app", Limit: 5, Used: &used}})
		if err := e.resized(t.Context(), got, obs, failed); err != nil {
			t.Errorf("resized() with an error that is the caller's: got %v, want nil", err)
		}
	}
	want = []string{"PodResizeInProgress Error 3 cannot decrease memory limits: " +
		`attempting to set container "app" memory limit (5) below current usage (7)`}
	if diff := cmp.Diff(want, told()); diff != "" {
		t.Errorf("a decrease below use: conditions mismatch (-want +got):\n%s", diff)
	}
	_, conditions := e.sizeOf(got, obs)
	again, _, _ := resizing("1")
	again.statuses.Set(pod, v1.PodStatus{Conditions: conditions})
	if _, list := again.sizeOf(got, obs); cmp.Diff(conditions, list) != "" {
		t.Errorf("after a restart: conditions %+v, want %+v", list, conditions)
	}
	obs.Containers[0].ID = "y" // it runs with what was allocated
	if err := e.resized(t.Context(), got, obs, nil); err != nil || told() != nil {
		t.Errorf("a resize that is done: %v, conditions %q; want none", err, told())
	}
	wantEvents := []string{
		"ResizeCompleted Pod resize completed", "ResizeError Pod resize error", "ResizeError Pod resize error", "ResizeInfeasible Pod resize Infeasible",
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
	check := func(what string, pod *v1.Pod, changes int, whole bool, runs string) {
		t.Helper()
		list, changed := e.changes(pod, obs)
		running, _ := e.sizeOf(pod, obs)
		r := running[resize.Whole]
		if len(list) != changes || changed != whole || r.Limits.Cpu().String() != runs {
			t.Errorf("%s: %d changes, of the pod %v, it runs with %s; want %d, %v, %s", what, len(list), changed,
				r.Limits.Cpu(), changes, whole, runs)
		}
	}
	check("at first", e.allocate(of("2")), 0, false, "2")
	pod := e.allocate(of("1500m"))
	check("allocated", pod, 1, true, "2")
	obs.Containers[0].ID = "y" // started again with the pod's new limit
	check("the container has it", pod, 0, true, "2")
	if err := e.resized(t.Context(), pod, obs, nil); err != nil {
		t.Fatal(err)
	}
	check("done", pod, 0, false, "1500m")
}

// TestDeferredResizes: what one pod gives back goes to those that wait, in order of their priority.
func TestDeferredResizes(t *testing.T) {
	e, _, _ := resizing("1")
	e.pool = podworker.New(t.Context(), podworker.Options{Syncer: e})
	set := func(name, cpu string, priority int32) *v1.Pod {
		pod := asking(cpu)
		pod.Name, pod.UID, pod.Spec.Priority = name, types.UID(name), &priority
		e.desired.Put(pod, false)
		e.desired.SetAdmission(pod.UID, nil)
		return e.allocate(pod)
	}
	for _, name := range []string{"a", "b", "c"} {
		set(name, "500m", 0)
	}
	set("b", "1200m", 1) // 700m more, of 500m
	set("c", "1200m", 2)
	set("a", "600m", 3)
	set("a", "100m", 3)
	e.retryResizes(nil)
	want := map[string]string{"a": "100m", "b": "500m", "c": "1200m"}
	got := map[string]string{}
	for name := range want {
		w, _ := e.desired.Get(types.UID(name))
		got[name] = e.allocated(w.Pod).Spec.Containers[0].Resources.Requests.Cpu().String()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("allocated cpu mismatch (-want +got):\n%s", diff)
	}
}

// TestResizeUnderPressure: a node that is short of disk gives pods nothing more, and does when that is over.
func TestResizeUnderPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, pod, _ := resizing("1")
		e.allocate(pod)
		var available atomic.Int64
		e.evictions = eviction.New(eviction.Options{
			Config: eviction.Config{Thresholds: []eviction.Threshold{{Signal: eviction.NodeFS, Value: eviction.Value{Amount: 100}}}},
			Node: func(context.Context) (eviction.Observations, error) {
				return eviction.Observations{eviction.NodeFS: {Available: available.Load(), Capacity: 1000}}, nil
			},
			Pods: func(context.Context, eviction.Signal) ([]eviction.PodUsage, eviction.Layout, error) {
				return nil, eviction.Layout{}, nil
			},
			Changed: func([]v1.NodeConditionType, []eviction.Threshold, eviction.Observations) {},
		})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = e.evictions.Run(ctx) }) // it returns nil
		synctest.Wait()
		got := e.allocate(asking("2"))
		pending := e.sizes.pods["1"].pending
		if got.Spec.Containers[0].Resources.Requests.Cpu().String() != "1" || pending == nil || pending.Reason != "Deferred" ||
			pending.Message != "The node had condition: [DiskPressure]. " {
			t.Errorf("cpu under pressure = %v, condition %+v; want 1, Deferred for DiskPressure",
				got.Spec.Containers[0].Resources.Requests.Cpu(), pending)
		}
		available.Store(1000)
		time.Sleep(time.Hour)
		e.desired.Put(asking("2"), false)
		e.pool = podworker.New(ctx, podworker.Options{Syncer: e})
		e.retryResizes(nil)
		if got := e.allocated(asking("2")); got.Spec.Containers[0].Resources.Requests.Cpu().String() != "2" {
			t.Errorf("cpu after the pressure = %v, want 2", got.Spec.Containers[0].Resources.Requests.Cpu())
		}
		cancel()
		wg.Wait()
	})
}
