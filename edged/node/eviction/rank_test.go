package eviction

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// named makes a pod whose container "main" asks for what is given: "memory=1Mi".
func named(name string, priority int32, asks ...string) *v1.Pod {
	list := v1.ResourceList{}
	for _, a := range asks {
		k, q, _ := strings.Cut(a, "=")
		list[v1.ResourceName(k)] = resource.MustParse(q)
	}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PodSpec{
			Priority: &priority, Containers: []v1.Container{
				{Name: "main", Resources: v1.ResourceRequirements{Requests: list}},
			},
		},
	}
}

func names(list []PodUsage) string {
	var out []string
	for _, u := range list {
		out = append(out, u.Pod.Name)
	}
	return strings.Join(out, " ")
}

func TestRank(t *testing.T) {
	const mi = 1 << 20
	static := named("static", 0)
	static.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	images := Layout{Images: true, Layers: true}
	split := Layout{Images: true}
	disk := func(name string, root, logs, volumes int64) PodUsage {
		return PodUsage{
			Pod:     named(name, 0),
			RootFS:  DiskUse{root * mi, root},
			Logs:    DiskUse{logs * mi, logs},
			Volumes: DiskUse{volumes * mi, volumes},
		}
	}
	writers := []PodUsage{disk("root", 50, 1, 1), disk("logs", 1, 40, 1), disk("volumes", 1, 1, 60)}
	for name, c := range map[string]struct {
		signal Signal
		layout Layout
		pods   []PodUsage
		want   string
	}{
		"over the request, then priority, then how much over": {Memory, Layout{}, []PodUsage{
			{Pod: named("under", 0, "memory=500Mi"), Memory: 400 * mi},
			{Pod: named("over-high", 10, "memory=10Mi"), Memory: 300 * mi},
			{Pod: named("over-low-little", 0, "memory=10Mi"), Memory: 20 * mi},
			{Pod: named("over-low-much", 0, "memory=100Mi"), Memory: 130 * mi},
			{Pod: named("best-effort", 0), Memory: 25 * mi},
		}, "over-low-much best-effort over-low-little over-high under"},
		"critical ones never go": {Memory, Layout{}, []PodUsage{
			{Pod: static, Memory: 900 * mi}, {Pod: named("system", 2000000000), Memory: 900 * mi},
			{Pod: named("other", 1999999999), Memory: 1},
		}, "other"},
		"running and not measured": {Memory, Layout{}, []PodUsage{
			{Pod: named("over", 0), Memory: 900 * mi}, {Pod: named("unknown-high", 10), Unmeasured: true},
			{Pod: named("unknown", 0, "memory=1Mi"), Unmeasured: true}, {Pod: named("not-started", 0)},
		}, "unknown unknown-high over not-started"},
		"not measured, of processes": {PIDs, Layout{}, []PodUsage{
			{Pod: named("few", 0), Processes: 3, Unmeasured: true}, {Pod: named("many", 0), Processes: 9},
		}, "many few"},
		"nothing that may go": {AllocatableMemory, Layout{}, []PodUsage{{Pod: static}}, ""},
		"equals by name":      {Memory, Layout{}, []PodUsage{{Pod: named("b", 0)}, {Pod: named("a", 0)}}, "a b"},
		"ephemeral storage that was asked for": {NodeFS, Layout{}, []PodUsage{
			{Pod: named("asked", 0, "ephemeral-storage=100Mi"), Logs: DiskUse{90 * mi, 1}},
			{Pod: named("not", 0), Logs: DiskUse{1 * mi, 1}},
		}, "not asked"},
		"one file system": {NodeFS, Layout{}, writers, "volumes root logs"},
		"one file system, asked for that of images":  {ImageFS, Layout{}, writers, "volumes root logs"},
		"images and layers on their own":             {NodeFS, images, writers, "volumes logs root"},
		"images and layers on their own, images":     {ImageFS, images, writers, "root logs volumes"},
		"images and layers on their own, containers": {ContainerFS, images, writers, "root logs volumes"},
		"images alone on their own":                  {NodeFS, split, writers, "volumes root logs"},
		"images alone on their own, images":          {ImageFS, split, writers, "logs root volumes"},
		"images alone on their own, containers":      {ContainerFS, split, writers, "volumes root logs"},
		"inodes":                                     {NodeFSInodes, images, writers, "volumes logs root"},
		"processes": {PIDs, Layout{}, []PodUsage{
			{Pod: named("few", 0), Processes: 3}, {Pod: named("many-high", 5), Processes: 900},
			{Pod: named("many", 0), Processes: 800},
		}, "many few many-high"},
	} {
		if got := names(Rank(c.signal, c.layout, c.pods)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestMessage(t *testing.T) {
	const mi = 1 << 20
	pod := named("p", 0, "memory=10Mi")
	pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: "second"})
	u := PodUsage{Pod: pod, Containers: []ContainerUsage{{"main", 30 * mi, 2 * mi}, {"second", 5 * mi, 3 * mi}}}
	seen := Observations{Memory: {90 * mi, 1000 * mi}, NodeFS: {90 * mi, 1000 * mi}, PIDs: {7, 32768}}
	for _, c := range []struct {
		t    Threshold
		want string
	}{
		{
			Threshold{Signal: Memory, Value: Value{Amount: 100 * mi}},
			"The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. " +
				"Container main was using 30Mi, request is 10Mi, has larger consumption of memory. Container second " +
				"was using 5Mi, request is 0, has larger consumption of memory. ",
		},
		{
			Threshold{Signal: NodeFS, Value: Value{Percent: 10}},
			"The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, available: 90Mi. " +
				"Container main was using 2Mi, request is 0, has larger consumption of ephemeral-storage. Container " +
				"second was using 3Mi, request is 0, has larger consumption of ephemeral-storage. ",
		},
		{
			Threshold{Signal: PIDs, Value: Value{Amount: 100}},
			"The node was low on resource: pids. Threshold quantity: 100, available: 7. ",
		},
		{Threshold{Signal: ImageFSInodes, Value: Value{Amount: 100}}, "The node was low on resource: inodes. "},
	} {
		got, _ := Message(c.t, seen, u)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.t.Signal, diff)
		}
	}
	u.Memory = 40 * mi
	pod.Spec.Resources = &v1.ResourceRequirements{
		Requests: v1.ResourceList{v1.ResourceMemory: resource.MustParse("50Mi")},
	}
	text, annotations := Message(Threshold{Signal: Memory, Value: Value{Amount: 100 * mi}}, seen, u)
	want := map[string]string{
		"starved_resource": "memory", "offending_containers": "main,second", "offending_containers_usage": "30Mi,5Mi",
		"offending_pod": "p", "offending_pod_usage": "40Mi",
	}
	if diff := cmp.Diff(want, annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	if !strings.Contains(text,
		"available: 90Mi. Pod p was using 40Mi, request is 50Mi, has larger consumption of memory. Container main") {
		t.Errorf("message %q, want the pod before its containers", text)
	}
	over := Threshold{Signal: Memory, Value: Value{Amount: 100 * mi}}
	if got := over.Describe(seen); got != "memory.available is 90Mi, and should be 100Mi or more" {
		t.Errorf("Describe = %q, want memory.available is 90Mi, and should be 100Mi or more", got)
	}
}

func TestAdmit(t *testing.T) {
	memory, disk := v1.NodeMemoryPressure, v1.NodeDiskPressure
	tolerant := func(t v1.Toleration) *v1.Pod {
		p := named("tolerant", 0)
		p.Spec.Tolerations = []v1.Toleration{t}
		return p
	}
	static := named("static", 0)
	static.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	for name, c := range map[string]struct {
		conditions []v1.NodeConditionType
		pod        *v1.Pod
		want       string
	}{
		"none": {nil, named("p", 0), ""},
		"memory, best effort": {
			[]v1.NodeConditionType{memory}, named("p", 0), "The node had condition: [MemoryPressure]. ",
		},
		"memory, burstable": {[]v1.NodeConditionType{memory}, named("p", 0, "memory=1Mi"), ""},
		"memory, static":    {[]v1.NodeConditionType{memory}, static, ""},
		"memory, tolerated": {
			[]v1.NodeConditionType{
				memory,
			}, tolerant(v1.Toleration{Key: v1.TaintNodeMemoryPressure, Operator: v1.TolerationOpExists}), "",
		},
		"memory, all tolerated": {
			[]v1.NodeConditionType{memory}, tolerant(v1.Toleration{Operator: v1.TolerationOpExists}), "",
		},
		"memory, tolerated by value": {
			[]v1.NodeConditionType{
				memory,
			}, tolerant(v1.Toleration{Key: v1.TaintNodeMemoryPressure, Effect: v1.TaintEffectNoSchedule}), "",
		},
		"memory, another effect": {
			[]v1.NodeConditionType{
				memory,
			}, tolerant(v1.Toleration{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}),
			"The node had condition: [MemoryPressure]. ",
		},
		"memory, something else": {
			[]v1.NodeConditionType{memory}, tolerant(v1.Toleration{Key: "a", Operator: v1.TolerationOpExists}),
			"The node had condition: [MemoryPressure]. ",
		},
		"disk": {
			[]v1.NodeConditionType{disk}, named("p", 0, "memory=1Mi"), "The node had condition: [DiskPressure]. ",
		},
		"disk, tolerated": {
			[]v1.NodeConditionType{disk}, tolerant(v1.Toleration{Operator: v1.TolerationOpExists}),
			"The node had condition: [DiskPressure]. ",
		},
		"disk, critical": {[]v1.NodeConditionType{disk}, named("p", 2000001000), ""},
		"disk and memory, no best effort": {
			[]v1.NodeConditionType{disk, memory}, named("p", 0, "memory=1Mi"),
			"The node had condition: [DiskPressure MemoryPressure]. ",
		},
	} {
		got := Admit(c.conditions, c.pod)
		if (got == nil) != (c.want == "") || got != nil && (got.Message != c.want || got.Reason != "Evicted") {
			t.Errorf("%s: %+v, want %q", name, got, c.want)
		}
	}
}
