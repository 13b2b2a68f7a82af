package edged

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// A pod with a limit wakes the measuring, once; critical pods and those without limits do not.
func TestDiskLimitsWake(t *testing.T) {
	limited := &v1.Pod{Spec: v1.PodSpec{Volumes: []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("1Mi"))}}}}}}
	storage := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Resources: v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse("1Mi")}}}}}}
	critical := limited.DeepCopy()
	critical.Spec.Priority = ptr.To[int32](2000000000)
	static := limited.DeepCopy()
	static.ObjectMeta = metav1.ObjectMeta{Annotations: map[string]string{"kubernetes.io/config.source": "file"}}
	for name, tc := range map[string]struct {
		pod  *v1.Pod
		want bool
	}{"volume": {limited, true}, "storage": {storage, true}, "none": {&v1.Pod{}, false}, "critical": {critical, false}, "static": {static, false}} {
		l := newDiskLimits()
		for range 3 {
			l.saw(tc.pod)
		}
		if got := len(l.begun) == 1; got != tc.want {
			t.Errorf("%s: woken %v, want %v", name, got, tc.want)
		}
		l = newDiskLimits()
		l.watched.Store(true)
		if l.saw(tc.pod); len(l.begun) != 0 {
			t.Errorf("%s: woken %d times while pods are watched already, want 0", name, len(l.begun))
		}
	}
}
