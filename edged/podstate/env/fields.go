package env

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// Fields implements volume.Fields: it answers the downward API for volumes.
type Fields struct{ Facts func() Facts }

// Field implements volume.Fields.
func (f *Fields) Field(pod *v1.Pod, path string) (string, error) {
	return Field(pod, path, f.Facts())
}

// Resource implements volume.Fields.
func (f *Fields) Resource(pod *v1.Pod, container string, ref *v1.ResourceFieldSelector) (string, error) {
	for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == container {
				return Resource(pod, &list[i], ref, f.Facts().Allocatable)
			}
		}
	}
	return "", fmt.Errorf("container %s not found", container)
}
