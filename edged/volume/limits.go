package volume

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// DiskUse is what a pod takes of the disk, in bytes.
type DiskUse struct {
	// Volumes by name, see Manager.Usage.
	Volumes map[string]int64
	// Containers by name: what they wrote into their root file system, and their logs.
	Containers map[string]int64
	// Other is what else is the pod's alone, such as its hosts file.
	Other int64
}

// LimitedVolumes tells whether an emptyDir of a pod on the disk has a size limit. In memory, the kernel keeps them.
func LimitedVolumes(pod *v1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if sizeLimit(&pod.Spec.Volumes[i]) != nil {
			return true
		}
	}
	return false
}

// LimitedStorage tells whether containers of a pod have limits of ephemeral-storage.
func LimitedStorage(pod *v1.Pod) bool {
	_, limited := storageLimit(pod)
	return limited
}

// sizeLimit is that of an emptyDir on the disk, nil where there is none.
func sizeLimit(vol *v1.Volume) *resource.Quantity {
	if vol.EmptyDir == nil || vol.EmptyDir.Medium != v1.StorageMediumDefault || vol.EmptyDir.SizeLimit == nil || vol.EmptyDir.SizeLimit.Sign() <= 0 {
		return nil
	}
	return vol.EmptyDir.SizeLimit
}

// storageLimit adds up the limits of ephemeral-storage as resources of pods are: all containers that run together, or the
// largest init container with the sidecars before it; and the overhead of the runtime.
func storageLimit(pod *v1.Pod) (limit resource.Quantity, limited bool) {
	of := func(c *v1.Container) resource.Quantity {
		q, has := c.Resources.Limits[v1.ResourceEphemeralStorage]
		limited = limited || has
		return q
	}
	var sidecars, peak resource.Quantity
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		q := of(c)
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			sidecars.Add(q)
			q = sidecars.DeepCopy()
		} else {
			q.Add(sidecars)
		}
		if q.Cmp(peak) > 0 {
			peak = q
		}
	}
	limit = sidecars
	for i := range pod.Spec.Containers {
		limit.Add(of(&pod.Spec.Containers[i]))
	}
	if peak.Cmp(limit) > 0 {
		limit = peak
	}
	if overhead, has := pod.Spec.Overhead[v1.ResourceEphemeralStorage]; has && limited {
		limit.Add(overhead)
	}
	return limit, limited
}

// Exceeds says in the kubelet's words which limit of the disk a pod exceeds, "" for none. It is pure.
func Exceeds(pod *v1.Pod, use DiskUse) string {
	for i := range pod.Spec.Volumes {
		vol := &pod.Spec.Volumes[i]
		if limit := sizeLimit(vol); limit != nil && use.Volumes[vol.Name] > limit.Value() {
			return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", vol.Name, limit)
		}
	}
	limit, limited := storageLimit(pod)
	if !limited {
		return ""
	}
	total := use.Other
	for _, bytes := range use.Volumes {
		total += bytes
	}
	for _, bytes := range use.Containers {
		total += bytes
	}
	if total > limit.Value() {
		return fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", &limit)
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if own, has := c.Resources.Limits[v1.ResourceEphemeralStorage]; has && own.Sign() > 0 && use.Containers[c.Name] > own.Value() {
			return fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, &own)
		}
	}
	return ""
}
