package status

import v1 "k8s.io/api/core/v1"

// volumeMounts says how the volumes of a container are mounted. That is settled once the container was made. prev is
// the container's previous status, or nil.
func volumeMounts(in Inputs, c *v1.Container, prev *v1.ContainerStatus) []v1.VolumeMountStatus {
	if prev != nil && prev.ContainerID != "" && len(prev.VolumeMounts) > 0 {
		return prev.VolumeMounts
	}
	return mountStatuses(c.VolumeMounts, func() bool { return in.RecursiveReadOnly })
}
