package admission

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestQOS: the class is the API server's, which is immutable: another one in a status has all of the status refused.
func TestQOS(t *testing.T) {
	res := func(requests, limits v1.ResourceList) v1.Container {
		return v1.Container{Resources: v1.ResourceRequirements{Requests: requests, Limits: limits}}
	}
	full := res(list("1", "1Gi"), list("1", "1Gi"))
	withStatus := func(class v1.PodQOSClass) *v1.Pod {
		p := pod(full)
		p.Status.QOSClass = class
		return p
	}
	podLevel := func(r v1.ResourceRequirements, containers ...v1.Container) *v1.Pod {
		p := pod(containers...)
		p.Spec.Resources = &r
		return p
	}
	memory := v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Mi")}
	other := v1.ResourceList{"example.com/gpu": resource.MustParse("1")}
	withInit := pod(full)
	withInit.Spec.InitContainers = []v1.Container{res(nil, nil)}
	for name, c := range map[string]struct {
		pod  *v1.Pod
		want v1.PodQOSClass
	}{
		"no resources":              {pod(res(nil, nil)), v1.PodQOSBestEffort},
		"as much as the limits":     {pod(full, full), v1.PodQOSGuaranteed},
		"an init container without": {withInit, v1.PodQOSBurstable},
		"cpu request of 0":          {pod(res(list("0", "1Gi"), list("1", "1Gi"))), v1.PodQOSBurstable},
		"memory request of 0":       {pod(res(list("1", "0"), list("1", "1Gi"))), v1.PodQOSBurstable},
		"requests of 0 and limits":  {pod(res(list("0", "0"), list("1", "1Gi"))), v1.PodQOSBurstable},
		"requests of 0 alone":       {pod(res(list("0", "0"), nil)), v1.PodQOSBestEffort},
		"limits without defaults":   {pod(res(nil, list("1", "1Gi"))), v1.PodQOSGuaranteed},
		"memory alone":              {pod(res(memory, memory)), v1.PodQOSBurstable},
		"another resource":          {pod(res(nil, other)), v1.PodQOSBestEffort},
		"pod level":                 {podLevel(full.Resources, res(nil, nil)), v1.PodQOSGuaranteed},
		"pod level, cpu request of 0": {
			podLevel(res(list("0", "1Gi"), list("1", "1Gi")).Resources), v1.PodQOSBurstable,
		},
		"pod level that is empty":       {podLevel(v1.ResourceRequirements{}, full), v1.PodQOSGuaranteed},
		"empty pod and container level": {podLevel(v1.ResourceRequirements{}, res(nil, nil)), v1.PodQOSBestEffort},
		"pod level without cpu and memory": {
			podLevel(v1.ResourceRequirements{Limits: v1.ResourceList{"example.com/a": resource.MustParse("1")}}, full),
			v1.PodQOSGuaranteed,
		},
		"pod level of huge pages": {
			podLevel(v1.ResourceRequirements{
				Limits: v1.ResourceList{"hugepages-2Mi": resource.MustParse("2Mi")},
			}, full),
			v1.PodQOSBestEffort,
		},
		"the API server's class":          {withStatus(v1.PodQOSBurstable), v1.PodQOSBurstable},
		"a class in status that is wrong": {withStatus("Golden"), v1.PodQOSGuaranteed},
	} {
		if got := QOS(c.pod); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}
