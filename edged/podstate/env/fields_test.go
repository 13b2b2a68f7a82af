package env

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestFieldsField(t *testing.T) {
	f := &Fields{Facts: func() Facts { return Facts{NodeName: "n"} }}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	for path, want := range map[string]string{"metadata.name": "web", "metadata.namespace": "shop"} {
		if got, err := f.Field(pod, path); err != nil || got != want {
			t.Errorf("Field(%s) = %q, %v; want %q", path, got, err, want)
		}
	}
	if _, err := f.Field(pod, "metadata.nothing"); err == nil {
		t.Errorf("Field(metadata.nothing) = nil, want an error")
	}
}

func TestFieldsResource(t *testing.T) {
	limits := v1.ResourceList{v1.ResourceMemory: resource.MustParse("64Mi")}
	pod := &v1.Pod{Spec: v1.PodSpec{
		Containers:     []v1.Container{{Name: "app", Resources: v1.ResourceRequirements{Limits: limits}}},
		InitContainers: []v1.Container{{Name: "init"}},
	}}
	f := &Fields{Facts: func() Facts {
		return Facts{Allocatable: v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")}}
	}}
	for name, want := range map[string]string{"app": "67108864", "init": "1073741824", "none": ""} {
		got, err := f.Resource(pod, name, &v1.ResourceFieldSelector{Resource: "limits.memory"})
		if got != want || (err != nil) != (want == "") {
			t.Errorf("limits.memory of %s = %q, %v, want %q", name, got, err, want)
		}
	}
}
