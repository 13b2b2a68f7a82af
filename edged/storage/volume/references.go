package volume

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Kind is a kind of object that pods refer to.
type Kind string

// The kinds.
const (
	KindConfigMap Kind = "configmap"
	KindSecret    Kind = "secret"
)

// Refers reports whether a pod names an object of a kind, in whatever place a pod can: volumes,
// environments of all kinds of containers, pull secrets.
func Refers(pod *v1.Pod, kind Kind, name string) bool {
	return slices.Contains(References(pod, kind), name)
}

// References returns the names of all objects of a kind that a pod refers to, each once.
func References(pod *v1.Pod, kind Kind) []string {
	var names []string
	add := func(k Kind, name string) {
		if k == kind && name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, s := range pod.Spec.ImagePullSecrets {
		add(KindSecret, s.Name)
	}
	for i := range pod.Spec.Volumes {
		volumeReferences(&pod.Spec.Volumes[i], add)
	}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			envReferences(list[i].Env, list[i].EnvFrom, add)
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		c := &pod.Spec.EphemeralContainers[i]
		envReferences(c.Env, c.EnvFrom, add)
	}
	return names
}

func volumeReferences(vol *v1.Volume, add func(Kind, string)) {
	if vol.ConfigMap != nil {
		add(KindConfigMap, vol.ConfigMap.Name)
	}
	if vol.Secret != nil {
		add(KindSecret, vol.Secret.SecretName)
	}
	if vol.CSI != nil && vol.CSI.NodePublishSecretRef != nil {
		add(KindSecret, vol.CSI.NodePublishSecretRef.Name)
	}
	if vol.Projected == nil {
		return
	}
	for _, s := range vol.Projected.Sources {
		if s.ConfigMap != nil {
			add(KindConfigMap, s.ConfigMap.Name)
		}
		if s.Secret != nil {
			add(KindSecret, s.Secret.Name)
		}
	}
}

func envReferences(env []v1.EnvVar, from []v1.EnvFromSource, add func(Kind, string)) {
	for _, e := range env {
		if e.ValueFrom == nil {
			continue
		}
		if r := e.ValueFrom.ConfigMapKeyRef; r != nil {
			add(KindConfigMap, r.Name)
		}
		if r := e.ValueFrom.SecretKeyRef; r != nil {
			add(KindSecret, r.Name)
		}
	}
	for _, f := range from {
		if f.ConfigMapRef != nil {
			add(KindConfigMap, f.ConfigMapRef.Name)
		}
		if f.SecretRef != nil {
			add(KindSecret, f.SecretRef.Name)
		}
	}
}
