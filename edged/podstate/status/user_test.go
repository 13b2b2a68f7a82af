package status

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

func TestUserOf(t *testing.T) {
	if none, empty := userOf(nil), userOf(&observed.Container{}); none != nil || empty != nil {
		t.Errorf("userOf(nil) = %v, userOf(a container without a user) = %v, want nil, nil", none, empty)
	}
	got := userOf(&observed.Container{
		User: &runtimeapi.LinuxContainerUser{Uid: 1, Gid: 2, SupplementalGroups: []int64{2, 3}},
	})
	if diff := cmp.Diff(&v1.ContainerUser{
		Linux: &v1.LinuxContainerUser{UID: 1, GID: 2, SupplementalGroups: []int64{2, 3}},
	}, got); diff != "" {
		t.Errorf("user mismatch (-want +got):\n%s", diff)
	}
}

func TestWithImages(t *testing.T) {
	mounts := []v1.VolumeMountStatus{{Name: "v", MountPath: "data"}, {Name: "w", MountPath: "/w"}}
	got := withImages(mounts, &observed.Container{Images: map[string]string{"/data": "r@sha256:1"}})
	want := []v1.VolumeMountStatus{
		{
			Name: "v", MountPath: "data", VolumeStatus: &v1.VolumeStatus{
				Image: &v1.ImageVolumeStatus{ImageRef: "r@sha256:1"},
			},
		}, mounts[1],
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("user mismatch (-want +got):\n%s", diff)
	}
	if own, without := mounts[0].VolumeStatus, withImages(mounts, nil)[0].VolumeStatus; own != nil || without != nil {
		t.Errorf("VolumeStatus of the argument = %v, without an image = %v, want nil, nil", own, without)
	}
}
