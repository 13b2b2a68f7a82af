package conformance

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/test/testenv/env"
)

// admissionRows are about what a node refuses, and what makes room.
func admissionRows() []row {
	refused := func(name, spec, reason, message string) row {
		return row{name: name, spec: spec, check: func(p *pod) {
			got := p.rejected(reason, "Pod was rejected: "+message)
			if s := got.Status; len(s.ContainerStatuses) != 0 || s.StartTime == nil || s.ObservedGeneration == 0 {
				p.Errorf("status = %+v, want no containers, a start time, an observed generation", s)
			}
			p.event(reason, message)
		}}
	}
	windows := refused("os-label", `containers: [{name: main}]`, "PodOSSelectorNodeLabelDoesNotMatch",
		"Failed to admit pod as the `kubernetes.io/os` label doesn't match node label")
	windows.labels = map[string]string{v1.LabelOSStable: "windows"}
	return []row{
		refused("out-of-cpu", `containers: [{name: main, resources: {requests: {cpu: "1000"}}}]`,
			"OutOfcpu", "Node didn't have enough resource: cpu, requested: 1000000, used: "),
		refused("out-of-memory", `containers: [{name: main, resources: {requests: {memory: 900Ti}}}]`,
			"OutOfmemory", "Node didn't have enough resource: memory, requested: 989560464998400, used: "),
		refused("out-of-storage", `containers: [{name: main, resources: {requests: {ephemeral-storage: 900Pi}}}]`,
			"OutOfephemeral-storage",
			"Node didn't have enough resource: ephemeral-storage, requested: 1013309916158361600, used: "),
		refused("out-of-huge-pages",
			`containers: [{name: main, resources: {requests: {cpu: 1m}, limits: {hugepages-2Mi: 900Ti}}}]`,
			"OutOfhugepages-2Mi",
			"Node didn't have enough resource: hugepages-2Mi, requested: 989560464998400, used: 0, capacity: "),
		refused("out-of-cpu-pod-level", `{resources: {requests: {cpu: "1000"}}, containers: [{name: main}]}`,
			"OutOfcpu", "Node didn't have enough resource: cpu, requested: 1000000, used: "),
		refused("os-field", `{os: {name: windows}, containers: [{name: main}]}`, "PodOSNotSupported",
			"Failed to admit pod as the OS field doesn't match node OS"),
		windows,
		refused("node-selector", `{nodeSelector: {kubernetes.io/arch: sparc}, containers: [{name: main}]}`,
			"NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"),
		refused("node-selector-unknown", `{nodeSelector: {example.com/nowhere: "yes"}, containers: [{name: main}]}`,
			"NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"),
		refused("node-affinity", `
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [another]}]}]}}}
containers: [{name: main}]
`, "NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"),
		{
			// The agent knows none of the cloud's labels, and asks for them.
			name: "node-selector-cloud", spec: `containers: [{name: main}]`, check: checkCloudLabel,
		},
		{
			name: "host-port-taken",
			spec: `{hostNetwork: true, containers: [{name: main, ports: [{containerPort: 34567, hostPort: 34567}]}]}`,
			check: func(p *pod) {
				p.running()
				second := p.sibling("second",
					`{hostNetwork: true, containers: [{name: main, ports: [{containerPort: 34567, hostPort: 34567}]}]}`)
				second.rejected("NodePorts", "Pod was rejected: Predicate NodePorts failed: node(s) didn't have free "+
					"ports for the requested pod ports")
				second.delete()
			},
		},
		{name: "preemption", spec: `containers: [{name: main}]`, check: checkPreemption},
		{
			name: "resources-guaranteed",
			spec: `containers: [{name: main, resources: {limits: {cpu: 200m, memory: 64Mi}}}]`,
			check: func(p *pod) {
				if qos := p.running().Status.QOSClass; qos != v1.PodQOSGuaranteed {
					p.Errorf("class = %s, want %s", qos, v1.PodQOSGuaranteed)
				}
				p.oomScore("main", -997)
				p.says("main",
					cgroupFile("cpu/cpu.shares", "cpu.weight")+"; "+cgroupFile("cpu/cpu.cfs_quota_us", "cpu.max")+"; "+
						cgroupFile("memory/memory.limit_in_bytes", "memory.max"),
					onCgroups("204\n20000\n67108864", "8\n20000 100000\n67108864"))
			},
		},
		{
			name: "resources-best-effort",
			spec: `containers: [{name: main}]`,
			check: func(p *pod) {
				if qos := p.running().Status.QOSClass; qos != v1.PodQOSBestEffort {
					p.Errorf("class = %s, want %s", qos, v1.PodQOSBestEffort)
				}
				p.oomScore("main", 1000)
				p.says("main", cgroupFile("cpu/cpu.shares", "cpu.weight"), onCgroups("2", "1"))
			},
		},
		{
			name: "resources-burstable",
			spec: `
initContainers: [{name: side, restartPolicy: Always}]
containers: [{name: main, resources: {requests: {cpu: 100m, memory: 1Mi}, limits: {memory: 99Mi}}}]
`,
			check: func(p *pod) {
				if qos := p.running().Status.QOSClass; qos != v1.PodQOSBurstable {
					p.Errorf("class = %s, want %s", qos, v1.PodQOSBurstable)
				}
				p.oomScore("main", 999)
				p.oomScore("side", 999) // no sooner than whom it serves
				p.says("main", cgroupFile("cpu/cpu.shares", "cpu.weight")+"; "+
					cgroupFile("memory/memory.limit_in_bytes", "memory.max"),
					onCgroups("102\n103809024", "4\n103809024"))
			},
		},
		{
			name: "priority-critical",
			spec: `{priorityClassName: system-node-critical, containers: [{name: main}]}`,
			check: func(p *pod) {
				p.running()
				p.oomScore("main", -997)
			},
		},
	}
}

// oomScore checks what the runtime was asked for. It is told not to go below its own score where it runs in a container
// itself, so that only the higher ones are to be seen inside.
func (p *pod) oomScore(container string, want int64) {
	p.Helper()
	c, err := p.container(container)
	env.Must(p, err)
	st, err := p.node.cri.ContainerStatus(p.Context(), &runtimeapi.ContainerStatusRequest{
		ContainerId: c.Id, Verbose: true,
	})
	env.Must(p, err)
	var info struct {
		Config struct {
			Linux struct {
				Resources struct {
					Score int64 `json:"oom_score_adj"`
				} `json:"resources"`
			} `json:"linux"`
		} `json:"config"`
	}
	env.Must(p, json.Unmarshal([]byte(st.Info["info"]), &info))
	if got := info.Config.Linux.Resources.Score; got != want {
		p.Errorf("container %s: oom score %d, want %d", container, got, want)
	}
	if want > 0 {
		p.says(container, "cat /proc/1/oom_score_adj", strconv.FormatInt(want, 10))
	}
}

// cgroupFile reads a file of the container's cgroup, which is that of the root in its own namespace.
func cgroupFile(v1, v2 string) string {
	return fmt.Sprintf("cat /sys/fs/cgroup/%s 2>/dev/null || cat /sys/fs/cgroup/%s", v1, v2)
}

// onCgroups is what is to be seen on cgroup v1, or on v2.
func onCgroups(v1, v2 string) string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return v2
	}
	return v1
}

func checkCloudLabel(p *pod) {
	p.running()
	label := "example.com/" + p.name
	_, err := p.node.api.CoreV1().Nodes().Patch(p.Context(), p.node.name, types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"`+label+`":"here"}}}`), metav1.PatchOptions{})
	env.Must(p, err)
	here := p.sibling("here", `{nodeSelector: {example.com/@NAME@: here}, containers: [{name: main}]}`)
	here.running()
	there := p.sibling("there", `{nodeSelector: {example.com/@NAME@: there}, containers: [{name: main}]}`)
	there.rejected("NodeAffinity", "Pod was rejected: Predicate NodeAffinity failed")
	here.delete()
	there.delete()
}

// checkPreemption fights about storage, which no other row asks for in such amounts.
func checkPreemption(p *pod) {
	p.running()
	obj, err := p.node.api.CoreV1().Nodes().Get(p.Context(), p.node.name, metav1.GetOptions{})
	env.Must(p, err)
	half := resource.NewQuantity(obj.Status.Allocatable.StorageEphemeral().Value()/10*6, resource.BinarySI).String()
	ask := "containers: [{name: main, resources: {requests: {ephemeral-storage: " + half + "}}}]"
	victim := p.sibling("victim", ask)
	victim.running()
	other := p.sibling("other", ask)
	other.rejected("OutOfephemeral-storage", "Pod was rejected: Node didn't have enough resource: ephemeral-storage")
	critical := p.sibling("critical", "priorityClassName: system-node-critical\n"+ask)
	critical.running()
	got := victim.status("it has made room", func(s *v1.PodStatus) error {
		if s.Phase != v1.PodFailed || s.Reason != "Preempting" ||
			s.Message != "Preempted in order to admit critical pod" {
			return fmt.Errorf("phase %s, reason %q, message %q", s.Phase, s.Reason, s.Message)
		}
		return nil
	})
	if c := condition(&got.Status, v1.DisruptionTarget); c == nil || c.Status != v1.ConditionTrue ||
		c.Reason != v1.PodReasonTerminationByKubelet || !strings.Contains(c.Message, "critical pod") {
		p.Errorf("condition = %+v, want True, %s, about a critical pod", c, v1.PodReasonTerminationByKubelet)
	}
	if t := got.Status.ContainerStatuses[0].State.Terminated; t == nil {
		p.Errorf("state = %+v, want terminated", got.Status.ContainerStatuses[0].State)
	}
	victim.event("Preempting", "Preempted in order to admit critical pod")
	for _, pod := range []*pod{victim, other, critical} {
		pod.delete()
	}
}
