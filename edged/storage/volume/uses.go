package volume

import (
	"iter"

	v1 "k8s.io/api/core/v1"
)

// use is how the containers of a pod have a volume: in volumeMounts, in volumeDevices, or both.
type use struct{ mounted, device bool }

// usesOf returns how the containers of a pod have its volumes, by name. As with the kubelet, a volume that is not among
// them is neither set up nor measured. A file that only a fileKeyRef names does not count as a use of its volume.
func usesOf(pod *v1.Pod) map[string]use {
	uses := map[string]use{}
	for c := range containers(pod) {
		for i := range c.mounts {
			u := uses[c.mounts[i].Name]
			u.mounted = true
			uses[c.mounts[i].Name] = u
		}
		for i := range c.devices {
			u := uses[c.devices[i].Name]
			u.device = true
			uses[c.devices[i].Name] = u
		}
	}
	return uses
}

// volumeRefs are what a container of any kind has of volumes.
type volumeRefs struct {
	mounts  []v1.VolumeMount
	devices []v1.VolumeDevice
}

// containers returns what each container of a pod has of volumes: init containers, containers and ephemeral containers.
func containers(pod *v1.Pod) iter.Seq[volumeRefs] {
	return func(yield func(volumeRefs) bool) {
		for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				if !yield(volumeRefs{list[i].VolumeMounts, list[i].VolumeDevices}) {
					return
				}
			}
		}
		for i := range pod.Spec.EphemeralContainers {
			c := &pod.Spec.EphemeralContainers[i]
			if !yield(volumeRefs{c.VolumeMounts, c.VolumeDevices}) {
				return
			}
		}
	}
}

// usedVolumes returns the volumes of a pod that a container has.
func usedVolumes(pod *v1.Pod) iter.Seq[*v1.Volume] {
	uses := usesOf(pod)
	return func(yield func(*v1.Volume) bool) {
		for i := range pod.Spec.Volumes {
			if _, used := uses[pod.Spec.Volumes[i].Name]; used && !yield(&pod.Spec.Volumes[i]) {
				return
			}
		}
	}
}
