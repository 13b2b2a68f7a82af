package caches

import (
	"reflect"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/podfacts"
	"github.com/edgecore-io/edgecore/pkg/memsize"
)

// referenceBytes is what a reference takes in the index of the cached pods.
const referenceBytes = 256

// The most that parts of a pod take in memory, with their references, however short they are in protobuf: a volume of
// 12 bytes becomes one of 310. Anything else takes at most plainFactor times its bytes.
const (
	plainFactor     = 10
	volumeBytes     = 400 + referenceBytes
	containerBytes  = 2500
	tolerationBytes = 100
	envBytes        = 100 + referenceBytes/2
)

// isPlain reports whether a pod is surely not large. It is several times as fast as ContentSize.
func isPlain(pod *v1.Pod) bool {
	s := &pod.Spec
	n := volumeBytes*len(s.Volumes) + tolerationBytes*len(s.Tolerations) + referenceBytes*len(s.ImagePullSecrets)
	container := func(env []v1.EnvVar, from []v1.EnvFromSource) {
		n += containerBytes + envBytes*len(env) + referenceBytes*len(from)
	}
	for i := range s.InitContainers {
		container(s.InitContainers[i].Env, s.InitContainers[i].EnvFrom)
	}
	for i := range s.Containers {
		container(s.Containers[i].Env, s.Containers[i].EnvFrom)
	}
	for i := range s.EphemeralContainers {
		container(s.EphemeralContainers[i].Env, s.EphemeralContainers[i].EnvFrom)
	}
	return n <= TrimBytes && n+plainFactor*pod.Size() <= TrimBytes
}

// ContentSize returns about how many bytes a pod without its status takes in memory, or in JSON if that is more. Bytes
// of protobuf say little: an empty field of two bytes may become a struct of hundreds.
func ContentSize(pod *v1.Pod) int {
	meta := pod.ObjectMeta
	meta.ResourceVersion, meta.ManagedFields = "", nil                 // they change, and the content does not
	meta.DeletionTimestamp, meta.DeletionGracePeriodSeconds = nil, nil // a deletion makes no pod larger
	return memsize.Of(reflect.ValueOf(&meta)) + memsize.Of(reflect.ValueOf(&pod.Spec)) +
		referenceBytes*len(podfacts.References(pod))
}

func statusSize(pod *v1.Pod) int { return memsize.Of(reflect.ValueOf(&pod.Status)) }
