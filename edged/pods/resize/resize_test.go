package resize

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	whole.Spec.Resources = new(res("2", "", "2", ""))
	if got := (Amounts{Whole: less}).On(whole); cmp.Diff(less, *got.Spec.Resources) != "" || got == whole {
		t.Errorf("On() gives the pod %+v, want a copy with %+v", got.Spec.Resources, less)
	}
	if told := Told(whole, &v1.PodStatus{AllocatedResources: less.Requests, Resources: &less}); cmp.Diff(less,
		told[Whole]) != "" {
		t.Errorf("Told() = %+v, want %+v for the whole pod", told, less)
	}
	if diff := cmp.Diff(Amounts{"a": res("1", "1Gi", "2", "2Gi")},
		Larger(Amounts{"a": res("1", "1Gi", "1", "2Gi")}, Amounts{"a": res("500m", "1Gi", "2", "1Gi")})); diff != "" {
		t.Errorf("Larger() mismatch (-want +got):\n%s", diff)
	}
}

// TestTold: the allocated amounts are in the previous status.
func TestTold(t *testing.T) {
	pod := podOf(res("2", "1Gi", "4", "1Gi"), res("1", "", "", ""))
	limits := res("", "", "3", "1Gi")
	status := &v1.PodStatus{
		ContainerStatuses: []v1.ContainerStatus{
			{Name: "a", AllocatedResources: res("1", "1Gi", "", "").Requests, Resources: &limits}, {Name: "b"},
			{Name: "gone", Resources: &limits},
		},
	}
	if diff := cmp.Diff(Amounts{"a": res("1", "1Gi", "3", "1Gi"), "b": res("1", "", "", "")},
		Told(pod, status)); diff != "" {
		t.Errorf("Told() mismatch (-want +got):\n%s", diff)
	}
	// A status that names what the pod does not ask for itself, as that of a container with its pod's limits does.
	effective := res("1", "1Gi", "3", "1Gi")
	status = &v1.PodStatus{
		AllocatedResources: effective.Requests, Resources: &effective,
		ContainerStatuses: []v1.ContainerStatus{
			{Name: "a", AllocatedResources: res("1", "", "", "").Requests, Resources: &effective},
		},
	}
	pod = podOf(res("2", "", "", ""))
	pod.Spec.Resources = new(res("2", "", "4", ""))
	if diff := cmp.Diff(Amounts{"a": res("1", "", "", ""), Whole: res("1", "", "3", "")},
		Told(pod, status)); diff != "" {
		t.Errorf("Told() mismatch (-want +got):\n%s", diff)
	}
}

// TestEffective: a container without a limit of its own has that of its pod.
func TestEffective(t *testing.T) {
	whole := res("2", "2Gi", "4", "4Gi")
	for name, c := range map[string]struct {
		whole     *v1.ResourceRequirements
		own, want v1.ResourceRequirements
	}{
		"no pod-level amounts": {nil, res("1", "", "", ""), res("1", "", "", "")},
		"no limits":            {&whole, res("1", "", "", ""), res("1", "", "4", "4Gi")},
		"a limit of its own":   {&whole, res("", "", "2", ""), res("", "", "2", "4Gi")},
	} {
		if diff := cmp.Diff(c.want, Effective(c.whole, c.own)); diff != "" {
			t.Errorf("%s: Effective() mismatch (-want +got):\n%s", name, diff)
		}
	}
}

func TestOrder(t *testing.T) {
	at := time.Unix(1000, 0)
	waiting := func(name, from, to string, priority int32, since time.Duration) Waiting {
		has, asks := podOf(res(from, "1Mi", "", "")), podOf(res(to, "1Mi", "", ""))
		asks.Name, asks.Spec.Priority = name, &priority
		w := Waiting{Pod: asks, Allocated: has}
		if since >= 0 {
			w.Since = at.Add(since)
		}
		return w
	}
	guaranteed := waiting("guaranteed", "1", "2", 0, 4)
	guaranteed.Pod.Status.QOSClass = v1.PodQOSGuaranteed
	list := []Waiting{
		waiting("new", "1", "2", 0, -1), waiting("young", "1", "2", 0, 2), waiting("old", "1", "2", 0, 1), guaranteed,
		waiting("important", "1", "2", 9, 3), waiting("smaller", "2", "1", -1, 5),
	}
	Order(list)
	var got []string
	for _, w := range list {
		got = append(got, w.Pod.Name)
	}
	if diff := cmp.Diff([]string{"smaller", "important", "guaranteed", "old", "young", "new"}, got); diff != "" {
		t.Errorf("Order() mismatch (-want +got):\n%s", diff)
	}
}

func TestCheckMemory(t *testing.T) {
	used := func(n uint64) *uint64 { return &n }
	for name, c := range map[string]struct {
		list []Decrease
		want string
	}{
		"nothing": {},
		"enough":  {list: []Decrease{{Name: "a", Limit: 10, Used: used(9)}, {Limit: 10, Used: used(9)}}},
		"as much": {
			[]Decrease{{Name: "a", Limit: 10, Used: used(10)}},
			`cannot decrease memory limits: attempting to set container "a" memory limit (10) below current usage (10)`,
		},
		"the pod's": {
			[]Decrease{
				{Limit: 10, Used: used(11)},
			}, "cannot decrease memory limits: attempting to set pod memory limit (10) below current usage (11)",
		},
		"not known": {
			[]Decrease{
				{Limit: 10}, {Name: "a", Limit: 10},
			}, `cannot decrease memory limits: [missing pod memory usage, missing container "a" memory usage]`,
		},
		"one of two": {
			[]Decrease{{Name: "a", Limit: 10, Used: used(1)}, {Name: "b", Limit: 10, Used: used(99)}},
			`cannot decrease memory limits: attempting to set container "b" memory limit (10) below current usage (99)`,
		},
	} {
		got := ""
		if err := CheckMemory(c.list); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	for _, c := range []struct {
		before, now int64
		want        bool
	}{{0, 0, false}, {0, 5, true}, {5, 0, false}, {5, 4, true}, {5, 5, false}, {5, 6, false}} {
		if got := Decreases(c.before, c.now); got != c.want {
			t.Errorf("Decreases(%d, %d) = %v, want %v", c.before, c.now, got, c.want)
		}
	}
}

// TestCondition: the generation is that of the resize, the transition that of the reason, and what is said again is the
// same to the byte: a status is written when something changes.
func TestCondition(t *testing.T) {
	at := func(s int64) metav1.Time { return metav1.Unix(s, 0) }
	first := Condition(v1.PodResizePending, nil, "Deferred", "why", 3, time.Unix(10, 99))
	want := &v1.PodCondition{
		Type: v1.PodResizePending, Status: v1.ConditionTrue, Reason: "Deferred", Message: "why", ObservedGeneration: 3,
		LastProbeTime: at(10), LastTransitionTime: at(10),
	}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Errorf("Condition() mismatch (-want +got):\n%s", diff)
	}
	for name, c := range map[string]struct {
		got           *v1.PodCondition
		probed, since metav1.Time
		generation    int64
	}{
		"the same": {Condition(v1.PodResizePending, first, "Deferred", "why", 3, time.Unix(20, 0)), at(10), at(10),
			3},
		"a new message": {Condition(v1.PodResizePending, first, "Deferred", "other", 3, time.Unix(20, 0)), at(20),
			at(10), 3},
		"a new spec": {Condition(v1.PodResizePending, first, "Deferred", "why", 4, time.Unix(20, 0)), at(20), at(10),
			4},
		"a new reason": {Condition(v1.PodResizePending, first, "Infeasible", "why", 3, time.Unix(20, 0)), at(20),
			at(20), 3},
	} {
		if !c.got.LastProbeTime.Equal(&c.probed) || !c.got.LastTransitionTime.Equal(&c.since) ||
			c.got.ObservedGeneration != c.generation {
			t.Errorf("%s: got %+v, want probed %v, since %v, generation %d", name, c.got, c.probed, c.since,
				c.generation)
		}
	}
}

func TestMessage(t *testing.T) {
	pod := podOf(res("1", "", "", ""))
	pod.Spec.InitContainers = []v1.Container{{Name: "i"}}
	want := `Pod resize error: {"initContainers":[{"name":"i","resources":{}}],` +
		`"containers":[{"name":"a","resources":{"requests":{"cpu":"1"}}}],"generation":2,"error":"why"}`
	if got := Message("Pod resize error", pod, 2, "why"); got != want {
		t.Errorf("Message() = %s, want %s", got, want)
	}
}

func TestJudge(t *testing.T) {
	node := v1.ResourceList{v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("1Gi")}
	others := []*v1.Pod{podOf(res("500m", "256Mi", "", ""))}
	for name, c := range map[string]struct {
		pod             *v1.Pod
		reason, message string
	}{
		"fits": {podOf(res("1500m", "768Mi", "", "")), "", ""},
		"never fits": {
			podOf(res("2500m", "1Mi", "", "")), "Infeasible",
			"Node didn't have enough capacity: cpu, requested: 2500, capacity: 2000",
		},
		"not now": {
			podOf(res("1", "1Mi", "", ""), res("501m", "1Mi", "", "")), "OutOfcpu",
			"Node didn't have enough resource: cpu, requested: 1501, used: 500, capacity: 2000",
		},
		"no memory now": {
			podOf(res("1", "1Gi", "", "")), "OutOfmemory", "Node didn't have enough resource: memory, requested: " +
				"1073741824, used: 268435456, capacity: 1073741824",
		},
	} {
		got := Admit(c.pod, node, others)
		if (got == nil) != (c.reason == "") || got != nil && (got.Reason != c.reason || got.Message != c.message) {
			t.Errorf("%s: %+v, want %q, %q", name, got, c.reason, c.message)
		}
	}
	if got := Admit(podOf(res("100", "", "", "")), v1.ResourceList{}, nil); got != nil {
		t.Errorf("a node that does not know what it has: %+v, want nil", got)
	}
}

// TestKeepsSwap: a memory request is not changed where a container may swap before or after, unless it is restarted for
// it.
func TestKeepsSwap(t *testing.T) {
	swaps := func(_ *v1.Pod, c *v1.Container) bool {
		return c.Resources.Requests.Memory().Cmp(*c.Resources.Limits.Memory()) != 0
	}
	restarts := func(name v1.ResourceName, pod *v1.Pod) *v1.Pod {
		pod.Spec.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{
			{ResourceName: name, RestartPolicy: v1.RestartContainer},
		}
		return pod
	}
	some := podOf(res("1", "64Mi", "1", "128Mi"))
	for name, c := range map[string]struct {
		from, to *v1.Pod
		refused  bool
	}{
		"nothing":        {some, some, false},
		"cpu":            {some, podOf(res("2", "64Mi", "2", "128Mi")), false},
		"the limit":      {some, podOf(res("1", "64Mi", "1", "256Mi")), false},
		"the request":    {some, podOf(res("1", "32Mi", "1", "128Mi")), true},
		"swapped before": {some, podOf(res("1", "128Mi", "1", "128Mi")), true},
		"is to swap":     {podOf(res("1", "128Mi", "1", "128Mi")), some, true},
		"never swaps":    {podOf(res("1", "64Mi", "1", "64Mi")), podOf(res("1", "32Mi", "1", "32Mi")), false},
		"restarted for memory": {restarts(v1.ResourceMemory, some.DeepCopy()), podOf(res("1", "32Mi", "1", "128Mi")),
			false},
		"restarted for cpu alone": {restarts(v1.ResourceCPU, some.DeepCopy()), podOf(res("1", "32Mi", "1", "128Mi")),
			true},
		"another container's": {
			podOf(res("1", "64Mi", "", ""), res("", "64Mi", "", "64Mi")),
			podOf(res("1", "64Mi", "", ""), res("", "32Mi", "", "32Mi")), false,
		},
	} {
		got := KeepsSwap(c.to, c.from, swaps)
		if (got != nil) != c.refused || got != nil && got.Reason != v1.PodReasonInfeasible {
			t.Errorf("%s: %+v, want refused as Infeasible: %v", name, got, c.refused)
		}
	}
}

func TestRestarts(t *testing.T) {
	c := &v1.Container{
		ResizePolicy: []v1.ContainerResizePolicy{{ResourceName: v1.ResourceCPU, RestartPolicy: v1.NotRequired},
			{ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer}},
	}
	from := res("1", "1Gi", "1", "1Gi")
	for name, to := range map[string]struct {
		res     v1.ResourceRequirements
		restart bool
	}{
		"nothing":          {from, false},
		"cpu":              {res("2", "1Gi", "2", "1Gi"), false},
		"memory":           {res("1", "1Gi", "1", "2Gi"), true},
		"less memory":      {res("1", "512Mi", "1", "512Mi"), true},
		"memory requested": {res("1", "512Mi", "1", "1Gi"), true},
	} {
		if got := Restarts(c, from, to.res); got != to.restart {
			t.Errorf("%s: restart %v, want %v", name, got, to.restart)
		}
	}
}
