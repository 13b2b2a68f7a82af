package status

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestVolumeMounts(t *testing.T) {
	c := &v1.Container{VolumeMounts: []v1.VolumeMount{{
		Name:              "v",
		MountPath:         "/v",
		ReadOnly:          true,
		RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyIfPossible),
	}}}
	want := func(mode v1.RecursiveReadOnlyMode) []v1.VolumeMountStatus {
		return []v1.VolumeMountStatus{{Name: "v", MountPath: "/v", ReadOnly: true, RecursiveReadOnly: &mode}}
	}
	first := volumeMounts(Inputs{}, c, nil)
	if diff := cmp.Diff(want(v1.RecursiveReadOnlyDisabled), first); diff != "" {
		t.Errorf("first mounts mismatch (-want +got):\n%s", diff)
	}
	// Until the container is made, what the runtime says counts; from then on what was said before.
	second := volumeMounts(Inputs{RecursiveReadOnly: true}, c, &v1.ContainerStatus{VolumeMounts: first})
	if diff := cmp.Diff(want(v1.RecursiveReadOnlyEnabled), second); diff != "" {
		t.Errorf("second mounts mismatch (-want +got):\n%s", diff)
	}
	third := volumeMounts(Inputs{}, c, &v1.ContainerStatus{ContainerID: "containerd://x", VolumeMounts: second})
	if diff := cmp.Diff(second, third); diff != "" {
		t.Errorf("third mounts mismatch (-want +got):\n%s", diff)
	}
}
