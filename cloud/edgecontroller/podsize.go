package edgecontroller

import (
	"reflect"
	"time"

	v1 "k8s.io/api/core/v1"
)

const (
	// referenceBytes is what a reference takes in the index of the cached pods.
	referenceBytes = 256
	// entryBytes is what an entry of a map takes beside its key and value.
	entryBytes = 16
	// escapeBytes is how many bytes more an escaped character takes in JSON.
	escapeBytes = 5
)

// The most that parts of a pod take in memory, with their references, however short they are in protobuf: a volume of
// 12 bytes becomes one of 310. Anything else takes at most plainFactor times its bytes.
const (
	plainFactor     = 10
	volumeBytes     = 400 + referenceBytes
	containerBytes  = 2500
	tolerationBytes = 100
	envBytes        = 100 + referenceBytes/2
)

// isPlain reports whether a pod is surely not large. It is several times as fast as contentSize.
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
	return n <= trimBytes && n+plainFactor*pod.Size() <= trimBytes
}

// contentSize returns about how many bytes a pod without its status takes in memory, or in JSON if that is more. Bytes
// of protobuf say little: an empty field of two bytes may become a struct of hundreds.
func contentSize(pod *v1.Pod) int {
	meta := pod.ObjectMeta
	meta.ResourceVersion, meta.ManagedFields = "", nil                 // they change, and the content does not
	meta.DeletionTimestamp, meta.DeletionGracePeriodSeconds = nil, nil // a deletion makes no pod larger
	return memoryOf(reflect.ValueOf(&meta)) + memoryOf(reflect.ValueOf(&pod.Spec)) +
		referenceBytes*len(references(pod))
}

func statusSize(pod *v1.Pod) int { return memoryOf(reflect.ValueOf(&pod.Status)) }

// memoryOf returns how many bytes a value refers to.
func memoryOf(v reflect.Value) (n int) {
	switch v.Kind() {
	case reflect.String:
		return textSize(v.String())
	case reflect.Pointer:
		if !v.IsNil() {
			return int(v.Type().Elem().Size()) + memoryOf(v.Elem())
		}
	case reflect.Slice:
		n = v.Len() * int(v.Type().Elem().Size())
		if k := v.Type().Elem().Kind(); k == reflect.Uint8 || v.Len() == 0 {
			return n
		}
		for i := range v.Len() {
			n += memoryOf(v.Index(i))
		}
	case reflect.Map:
		n = v.Len() * (entryBytes + int(v.Type().Key().Size()+v.Type().Elem().Size()))
		for i := v.MapRange(); i.Next(); {
			n += memoryOf(i.Key()) + memoryOf(i.Value())
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return 0 // its location is shared
		}
		for i := range v.NumField() {
			n += memoryOf(v.Field(i))
		}
	}
	return n
}

// textSize returns the length of a string in JSON.
func textSize(s string) int {
	n := len(s)
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '<' || c == '>' || c == '&' || c == '"' || c == '\\' {
			n += escapeBytes
		}
	}
	return n
}
