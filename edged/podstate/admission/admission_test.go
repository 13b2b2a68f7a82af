package admission

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

func list(cpu, memory string) v1.ResourceList {
	l := v1.ResourceList{}
	if cpu != "" {
		l[v1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		l[v1.ResourceMemory] = resource.MustParse(memory)
	}
	return l
}

func container(cpu, memory string) v1.Container {
	return v1.Container{Resources: v1.ResourceRequirements{Requests: list(cpu, memory)}}
}

func pod(containers ...v1.Container) *v1.Pod {
	return &v1.Pod{Spec: v1.PodSpec{Containers: containers}}
}

func port(p v1.ContainerPort) *v1.Pod {
	return pod(v1.Container{Ports: []v1.ContainerPort{p}})
}

func asks(name v1.ResourceName, q string) *v1.Pod {
	l := v1.ResourceList{name: resource.MustParse(q)}
	return pod(v1.Container{Resources: v1.ResourceRequirements{Requests: l, Limits: l}})
}

func static(p *v1.Pod) *v1.Pod {
	p.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	return p
}

func labelled(key, value string) *v1.Pod {
	p := pod()
	p.Labels = map[string]string{key: value}
	return p
}

func bound(node string) *v1.Pod {
	p := pod()
	p.Spec.NodeName = node
	return p
}

func podLevel(cpu string) *v1.Pod {
	p := pod(container("100m", ""))
	p.Spec.Resources = &v1.ResourceRequirements{Requests: list(cpu, "")}
	return p
}

func sidecarPort(port int32) *v1.Pod {
	p := pod()
	p.Spec.InitContainers = []v1.Container{
		{RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways), Ports: []v1.ContainerPort{{HostPort: port}}},
		{Ports: []v1.ContainerPort{{HostPort: 81}}},
	}
	return p
}

func TestRequests(t *testing.T) {
	sidecar := container("100m", "")
	sidecar.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
	withInit := pod(container("200m", "10Mi"), container("300m", ""))
	withInit.Spec.InitContainers = []v1.Container{container("900m", "5Mi")}
	withSidecar := pod(container("200m", ""))
	withSidecar.Spec.InitContainers = []v1.Container{sidecar, container("300m", ""), sidecar}
	withOverhead := pod(container("200m", ""))
	withOverhead.Spec.Overhead = list("50m", "1Mi")
	podLevel := pod(container("200m", "10Mi"))
	podLevel.Spec.Resources = &v1.ResourceRequirements{Requests: list("1", "")}
	for name, c := range map[string]struct {
		pod         *v1.Pod
		cpu, memory string
	}{
		"sum":       {pod(container("200m", "10Mi"), container("300m", "")), "500m", "10Mi"},
		"init peak": {withInit, "900m", "10Mi"},
		"sidecars":  {withSidecar, "400m", ""},
		"overhead":  {withOverhead, "250m", "1Mi"},
		"pod level": {podLevel, "1", "10Mi"},
	} {
		if diff := cmp.Diff(list(c.cpu, c.memory), Requests(c.pod)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestAdmit(t *testing.T) {
	node := Node{
		Name:        "edge-1",
		Allocatable: list("2", "512Mi"),
		Devices:     func(name v1.ResourceName) bool { return name == "example.com/served" },
		Checks: []func(*v1.Pod) *observed.Reason{func(p *v1.Pod) *observed.Reason {
			if p.Labels["bad"] != "" {
				return &observed.Reason{Reason: "SysctlForbidden", Message: "forbidden sysctl"}
			}
			return nil
		}},
	}
	for name, q := range map[v1.ResourceName]string{
		v1.ResourcePods: "3", "hugepages-2Mi": "8Mi", "example.com/gone": "0", "example.com/served": "1",
		v1.ResourceEphemeralStorage: "1Gi",
	} {
		node.Allocatable[name] = resource.MustParse(q)
	}
	windows := pod()
	windows.Spec.OS = &v1.PodOS{Name: v1.Windows}
	for name, c := range map[string]struct {
		pod    *v1.Pod
		others []*v1.Pod
		reason string
		text   string
	}{
		"fits": {
			pod: pod(container("1", "100Mi")), others: []*v1.Pod{pod(container("1", "100Mi"))},
		},
		"no requests fits": {pod: pod(), others: []*v1.Pod{pod(container("2", "512Mi"))}},
		"cpu": {
			pod:    pod(container("1500m", "")),
			others: []*v1.Pod{pod(container("600m", ""))},
			reason: "OutOfcpu",
			text:   "Node didn't have enough resource: cpu, requested: 1500, used: 600, capacity: 2000",
		},
		"memory": {
			pod: pod(container("", "1Gi")), reason: "OutOfmemory",
			text: "requested: 1073741824, used: 0, capacity: 536870912",
		},
		"pods": {
			pod:    pod(),
			others: []*v1.Pod{pod(), pod(), pod()},
			reason: "OutOfpods",
			text:   "pods, requested: 1, used: 3, capacity: 3",
		},
		"extended resource of a static pod": {pod: static(asks("example.com/gpu", "1")), reason: "OutOfexample.com/gpu",
			text: "requested: 1, used: 0, capacity: 0"},
		"extended resource of the cluster": {pod: asks("example.com/gpu", "1")},
		"extended resource that has gone": {pod: asks("example.com/gone", "1"), reason: "OutOfexample.com/gone",
			text: "capacity: 0"},
		"devices are counted later": {pod: asks("example.com/served", "9")},
		"huge pages": {pod: asks("hugepages-2Mi", "4Mi"), others: []*v1.Pod{asks("hugepages-2Mi", "6Mi")},
			reason: "OutOfhugepages-2Mi", text: "requested: 4194304, used: 6291456, capacity: 8388608"},
		"huge pages that fit": {pod: asks("hugepages-2Mi", "2Mi"), others: []*v1.Pod{asks("hugepages-2Mi", "6Mi")}},
		"huge pages of no size": {
			pod: asks("hugepages-1Gi", "1Gi"), reason: "OutOfhugepages-1Gi", text: "capacity: 0",
		},
		"ephemeral storage": {pod: asks(v1.ResourceEphemeralStorage, "2Gi"), reason: "OutOfephemeral-storage",
			text: "capacity: 1073741824"},
		"pod-level resources": {
			pod: podLevel("3"), reason: "OutOfcpu", text: "requested: 3000, used: 0, capacity: 2000",
		},
		"first reason of several": {pod: pod(container("9", "9Gi")), reason: "OutOfcpu"},
		"os label": {
			pod: labelled(v1.LabelOSStable, "windows"), reason: "PodOSSelectorNodeLabelDoesNotMatch",
			text: "kubernetes.io/os",
		},
		"another node": {
			pod: bound("other"), reason: "NodeName",
			text: "Predicate NodeName failed: node(s) didn't match the requested node name",
		},
		"a check of the node": {pod: labelled("bad", "yes"), reason: "SysctlForbidden", text: "forbidden sysctl"},
		"sidecar's port": {
			pod:    port(v1.ContainerPort{HostPort: 80}),
			others: []*v1.Pod{sidecarPort(80)},
			reason: "NodePorts",
			text:   "failed: node(s) didn't have free ports for the requested pod ports",
		},
		"windows": {pod: windows, reason: "PodOSNotSupported", text: "OS field"},
		"host port": {
			pod:    port(v1.ContainerPort{HostPort: 80}),
			others: []*v1.Pod{port(v1.ContainerPort{HostPort: 80, Protocol: v1.ProtocolTCP})},
			reason: "NodePorts",
			text:   "failed: node(s) didn't have free ports for the requested pod ports",
		},
		"other protocol": {
			pod: port(v1.ContainerPort{HostPort: 80}), others: []*v1.Pod{
				port(v1.ContainerPort{HostPort: 80, Protocol: v1.ProtocolUDP}),
			},
		},
		"other address": {
			pod:    port(v1.ContainerPort{HostPort: 80, HostIP: "127.0.0.1"}),
			others: []*v1.Pod{port(v1.ContainerPort{HostPort: 80, HostIP: "127.0.0.2"})},
		},
		"every address": {
			pod:    port(v1.ContainerPort{HostPort: 80, HostIP: "127.0.0.1"}),
			others: []*v1.Pod{port(v1.ContainerPort{HostPort: 80})},
			reason: "NodePorts",
			text:   "failed: node(s) didn't have free ports for the requested pod ports",
		},
		"same port, not bound": {
			pod: port(v1.ContainerPort{ContainerPort: 80}), others: []*v1.Pod{
				port(v1.ContainerPort{ContainerPort: 80}),
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := Admit(node, c.pod, c.others).Rejected
			switch {
			case got == nil && c.reason != "":
				t.Errorf("admitted; want %s", c.reason)
			case got != nil && (got.Reason != c.reason || !strings.Contains(got.Message, c.text)):
				t.Errorf("got %+v, want %s with %q", *got, c.reason, c.text)
			}
		})
	}
}
