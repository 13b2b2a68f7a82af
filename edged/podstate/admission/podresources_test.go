package admission

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

func TestStatusResources(t *testing.T) {
	list := func(cpu, memory string) v1.ResourceList {
		out := v1.ResourceList{}
		if cpu != "" {
			out[v1.ResourceCPU] = resource.MustParse(cpu)
		}
		if memory != "" {
			out[v1.ResourceMemory] = resource.MustParse(memory)
		}
		return out
	}
	of := func(requests, limits v1.ResourceList) v1.Container {
		return v1.Container{Resources: v1.ResourceRequirements{Requests: requests, Limits: limits}}
	}
	limited, bare := of(list("100m", "32Mi"), list("200m", "64Mi")), v1.Container{}
	sidecar := of(list("10m", "1Mi"), list("20m", "2Mi"))
	sidecar.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
	for name, c := range map[string]struct {
		spec          v1.PodSpec
		asks, asksMax v1.ResourceList
	}{
		"nothing": {v1.PodSpec{Containers: []v1.Container{bare}}, list("", ""), list("", "")},
		"all limited": {v1.PodSpec{Containers: []v1.Container{limited, limited}},
			list("200m", "64Mi"), list("400m", "128Mi")},
		"one limited": {v1.PodSpec{Containers: []v1.Container{limited, bare}},
			list("100m", "32Mi"), list("200m", "64Mi")},
		"with a sidecar": {v1.PodSpec{InitContainers: []v1.Container{sidecar}, Containers: []v1.Container{limited}},
			list("110m", "33Mi"), list("220m", "66Mi")},
		"pod level": {
			v1.PodSpec{Resources: &v1.ResourceRequirements{Requests: list("50m", ""), Limits: list("300m", "128Mi")},
				Containers: []v1.Container{bare}},
			list("50m", ""), list("300m", "128Mi"),
		},
		"overhead": {
			v1.PodSpec{Overhead: list("5m", "4Mi"), Containers: []v1.Container{of(list("10m", ""), list("", "16Mi"))}},
			list("15m", "4Mi"), list("", "20Mi"),
		},
	} {
		want := v1.ResourceRequirements{Requests: c.asks, Limits: c.asksMax}
		if diff := cmp.Diff(want, StatusResources(&v1.Pod{Spec: c.spec})); diff != "" {
			t.Errorf("%s: mismatch (-want +got):\n%s", name, diff)
		}
	}
}
