package edged

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/events"
	"github.com/edgecore-io/edgecore/edged/observed"
	"github.com/edgecore-io/edgecore/edged/status"
)

type noReports struct{}

func (noReports) PodStatus(*v1.Pod, v1.PodStatus) {}

// resizing is an agent of two cpus, and a pod with one container that asks for some.
func resizing(cpu string) (*Edged, *v1.Pod, *observed.Pod) {
	e := New(Options{Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("2")}}).next()
	e.statuses, e.recorder = status.NewManager(noReports{}), events.New("n", nil)
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
		if cpuOf(got) != step.gets || len(e.changes(got, obs)) != step.changes {
			t.Errorf("asks for %s: gets %s, %d changes; want %s, %d", step.asks, cpuOf(got), len(e.changes(got, obs)),
				step.gets, step.changes)
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
	left := again.changes(got, obs)
	if cpuOf(got) != "2" || len(left) != 1 || left[0].from.Requests.Cpu().String() != "1" {
		t.Errorf("after a restart: %s, %+v; want 2, and one change from 1", cpuOf(got), left)
	}
	if probes, err := again.resize(context.Background(), asking("1"), obs, nil); err != nil || len(probes) != 0 {
		t.Errorf("a container that has what it was allocated: %v, %v; want no probes", probes, err)
	}
}
