package status

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// userOf says who a container's first process began as, where the runtime says so.
func userOf(o *observed.Container) *v1.ContainerUser {
	if o == nil || o.User == nil {
		return nil
	}
	return &v1.ContainerUser{Linux: &v1.LinuxContainerUser{
		UID: o.User.Uid, GID: o.User.Gid, SupplementalGroups: slices.Clone(o.User.SupplementalGroups),
	}}
}

// withImages completes the mounts of images: which image it is.
func withImages(mounts []v1.VolumeMountStatus, o *observed.Container) []v1.VolumeMountStatus {
	if o == nil || len(o.Images) == 0 {
		return mounts
	}
	out := slices.Clone(mounts)
	for i := range out {
		path := "/" + strings.TrimPrefix(out[i].MountPath, "/")
		if ref := o.Images[path]; ref != "" {
			out[i].VolumeStatus = &v1.VolumeStatus{Image: &v1.ImageVolumeStatus{ImageRef: ref}}
		}
	}
	return out
}
