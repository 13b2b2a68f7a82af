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
	// Containers and Logs by name: what they wrote into their root file systems, and their logs.
	Containers, Logs map[string]int64
	// ImageFS: root file systems of containers are not on the file system of the node, so that only logs count for
	// the limits of single containers.
	ImageFS bool
	// Other is what else is the pod's alone, such as its hosts file.
	Other int64
}

// LimitedVolumes reports whether an emptyDir of a pod has a size limit that the kernel does not keep.
func LimitedVolumes(pod *v1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if sizeLimit(&pod.Spec.Volumes[i]) != nil {
			return true
		}
	}
	return false
}

// LimitedStorage reports whether containers of a pod have limits of ephemeral-storage.
func LimitedStorage(pod *v1.Pod) bool {
	_, limited := storageLimit(pod)
	return limited
}

// sizeLimit is that of an emptyDir on the disk or in huge pages, nil where there is none. In memory, the kernel keeps
// it.
func sizeLimit(vol *v1.Volume) *resource.Quantity {
	if vol.EmptyDir == nil || vol.EmptyDir.Medium == v1.StorageMediumMemory || vol.EmptyDir.SizeLimit == nil ||
		vol.EmptyDir.SizeLimit.Sign() <= 0 {
		return nil
	}
	return vol.EmptyDir.SizeLimit
}

// storageLimit adds up the limits of ephemeral-storage as resources of pods are: all containers that run together, or
// the largest init container with the sidecars before it; and the overhead of the runtime.
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

// Limit names a kind of limit, as the kubelet's metrics do.
type Limit string

// The limits of the disk that a pod may exceed.
const (
	LimitVolume    Limit = "emptydirfs.limit"
	LimitPod       Limit = "ephemeralpodfs.limit"
	LimitContainer Limit = "ephemeralcontainerfs.limit"
)

// Exceeds returns which limit of the disk a pod exceeds, and says so in the kubelet's words; "" for none. It is pure.
func Exceeds(pod *v1.Pod, use DiskUse) (limit Limit, message string) {
	for i := range pod.Spec.Volumes {
		vol := &pod.Spec.Volumes[i]
		if limit := sizeLimit(vol); limit != nil && use.Volumes[vol.Name] > limit.Value() {
			return LimitVolume, fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", vol.Name, limit)
		}
	}
	storage, limited := storageLimit(pod)
	if !limited {
		return "", ""
	}
	total := use.Other
	for _, bytes := range use.Volumes {
		total += bytes
	}
	for _, parts := range []map[string]int64{use.Containers, use.Logs} {
		for _, bytes := range parts {
			total += bytes
		}
	}
	if total > storage.Value() {
		return LimitPod, fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ",
			&storage)
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		used := use.Logs[c.Name]
		if !use.ImageFS {
			used += use.Containers[c.Name]
		}
		if own, has := c.Resources.Limits[v1.ResourceEphemeralStorage]; has && own.Sign() > 0 && used > own.Value() {
			return LimitContainer, fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name,
				&own)
		}
	}
	return "", ""
}
