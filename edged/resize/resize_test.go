package resize

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// res is requests and limits of cpu and memory; "" is none.
func res(cpu, memory, cpuLimit, memoryLimit string) v1.ResourceRequirements {
	list := func(cpu, memory string) v1.ResourceList {
		out := v1.ResourceList{}
		for name, text := range map[v1.ResourceName]string{v1.ResourceCPU: cpu, v1.ResourceMemory: memory} {
			if text != "" {
				out[name] = resource.MustParse(text)
			}
		}
		if len(out) == 0 {
			return nil
		}
		return out
	}
	return v1.ResourceRequirements{Requests: list(cpu, memory), Limits: list(cpuLimit, memoryLimit)}
}

func podOf(all ...v1.ResourceRequirements) *v1.Pod {
	pod := &v1.Pod{}
	for i, r := range all {
		pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: string(rune('a' + i)), Resources: r})
	}
	return pod
}

func TestAmounts(t *testing.T) {
	pod := podOf(res("1", "1Gi", "2", "2Gi"), res("", "", "", ""))
	pod.Spec.Containers[0].Resources.Limits["example.com/dev"] = resource.MustParse("1")
	if got := Of(pod).On(pod); got != pod {
		t.Errorf("On(a pod that has these amounts) = a copy %p, want the pod itself %p", got, pod)
	}
	smaller := Amounts{"a": res("500m", "1Gi", "1", "2Gi")}
	got := smaller.On(pod)
	want := pod.DeepCopy()
	want.Spec.Containers[0].Resources = res("500m", "1Gi", "1", "2Gi")
	want.Spec.Containers[0].Resources.Limits["example.com/dev"] = resource.MustParse("1")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("amounts mismatch (-want +got):\n%s", diff)
	}
	whole, less := podOf(res("", "", "", "")), res("1", "", "1", "")
	whole.Spec.Resources = &v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("2")}}
	if got := (Amounts{Whole: less}).On(whole); cmp.Diff(less, *got.Spec.Resources) != "" || got == whole {
		t.Errorf("On() gives the pod %+v, want a copy with %+v", got.Spec.Resources, less)
	}
	if told := Told(whole, &v1.PodStatus{AllocatedResources: less.Requests, Resources: &less}); cmp.Diff(less, told[Whole]) != "" {
		t.Errorf("Told() = %+v, want %+v for the whole pod", told, less)
	}
	if diff := cmp.Diff(Amounts{"a": res("1", "1Gi", "2", "2Gi")}, Larger(Amounts{"a": res("1", "1Gi", "1", "2Gi")}, Amounts{"a": res("500m", "1Gi", "2", "1Gi")})); diff != "" {
		t.Errorf("Larger() mismatch (-want +got):\n%s", diff)
	}
}

// TestTold: what was allocated is in the status of before.
func TestTold(t *testing.T) {
	pod := podOf(res("2", "1Gi", "4", "1Gi"), res("1", "", "", ""))
	limits := res("", "", "3", "1Gi")
	status := &v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: "a", AllocatedResources: res("1", "1Gi", "", "").Requests, Resources: &limits}, {Name: "b"}, {Name: "gone", Resources: &limits}}}
	if diff := cmp.Diff(Amounts{"a": res("1", "1Gi", "3", "1Gi"), "b": res("1", "", "", "")}, Told(pod, status)); diff != "" {
		t.Errorf("Told() mismatch (-want +got):\n%s", diff)
	}
}

func TestJudge(t *testing.T) {
	node := v1.ResourceList{v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("1Gi")}
	others := []*v1.Pod{podOf(res("500m", "256Mi", "", ""))}
	for name, c := range map[string]struct {
		pod             *v1.Pod
		reason, message string
	}{
		"fits":          {podOf(res("1500m", "768Mi", "", "")), "", ""},
		"never fits":    {podOf(res("2500m", "1Mi", "", "")), "Infeasible", "Node didn't have enough capacity: cpu, requested: 2500, capacity: 2000"},
		"not now":       {podOf(res("1", "1Mi", "", ""), res("501m", "1Mi", "", "")), "Deferred", "Node didn't have enough resource: cpu, requested: 1501, used: 500, capacity: 2000"},
		"no memory now": {podOf(res("1", "1Gi", "", "")), "Deferred", "Node didn't have enough resource: memory, requested: 1073741824, used: 268435456, capacity: 1073741824"},
	} {
		got := Judge(c.pod, node, others)
		if (got == nil) != (c.reason == "") || got != nil && (got.Reason != c.reason || got.Message != c.message) {
			t.Errorf("%s: %+v, want %q, %q", name, got, c.reason, c.message)
		}
	}
	if got := Judge(podOf(res("100", "", "", "")), v1.ResourceList{}, nil); got != nil {
		t.Errorf("a node that does not know what it has: %+v, want nil", got)
	}
}

func TestRestarts(t *testing.T) {
	c := &v1.Container{ResizePolicy: []v1.ContainerResizePolicy{{ResourceName: v1.ResourceCPU, RestartPolicy: v1.NotRequired}, {ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer}}}
	from := res("1", "1Gi", "1", "1Gi")
	for name, to := range map[string]struct {
		res           v1.ResourceRequirements
		restart, less bool
	}{
		"nothing":          {from, false, false},
		"cpu":              {res("2", "1Gi", "2", "1Gi"), false, false},
		"memory":           {res("1", "1Gi", "1", "2Gi"), true, false},
		"less memory":      {res("1", "512Mi", "1", "512Mi"), true, true},
		"memory requested": {res("1", "512Mi", "1", "1Gi"), true, false},
	} {
		if got := Restarts(c, from, to.res); got != to.restart {
			t.Errorf("%s: restart %v, want %v", name, got, to.restart)
		}
		if got := Shrinks(from, to.res); got != to.less {
			t.Errorf("%s: shrinks %v, want %v", name, got, to.less)
		}
	}
}
