// Package podfacts reads from a pod what several parts of edgecontroller decide from.
package podfacts

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/edgecore-io/edgecore/pkg/resource"
)

// References lists the ConfigMaps and Secrets that a pod names, each once, sorted: in volumes (also projected ones and
// those of drivers), in the environment of every kind of container, and for image pulls. Secrets of claims and
// persistent volumes are not included: nodes query them, and the API server's node authorizer decides.
func References(pod *v1.Pod) []resource.Key {
	r := refs{namespace: pod.Namespace}
	spec := &pod.Spec
	for i := range spec.Volumes {
		r.volume(&spec.Volumes[i].VolumeSource)
	}
	for i := range spec.InitContainers {
		r.env(spec.InitContainers[i].Env, spec.InitContainers[i].EnvFrom)
	}
	for i := range spec.Containers {
		r.env(spec.Containers[i].Env, spec.Containers[i].EnvFrom)
	}
	for i := range spec.EphemeralContainers {
		r.env(spec.EphemeralContainers[i].Env, spec.EphemeralContainers[i].EnvFrom)
	}
	for i := range spec.ImagePullSecrets {
		r.secretRef(&spec.ImagePullSecrets[i])
	}
	slices.SortFunc(r.keys, compareKeys)
	return slices.Compact(r.keys)
}

func compareKeys(a, b resource.Key) int {
	if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
		return c
	}
	if c := strings.Compare(a.Type, b.Type); c != 0 {
		return c
	}
	return strings.Compare(a.Name, b.Name)
}

type refs struct {
	namespace string
	keys      []resource.Key
}

// maxName is the length of the longest name that a ConfigMap or Secret can have. Pods may name longer ones.
const maxName = validation.DNS1123SubdomainMaxLength

func (r *refs) add(kind, name string) {
	if name != "" && len(name) <= maxName {
		r.keys = append(r.keys, resource.Key{Namespace: r.namespace, Type: kind, Name: name})
	}
}

func (r *refs) secret(name string)    { r.add(resource.TypeSecret, name) }
func (r *refs) configMap(name string) { r.add(resource.TypeConfigMap, name) }

func (r *refs) secretRef(ref *v1.LocalObjectReference) {
	if ref != nil {
		r.secret(ref.Name)
	}
}

func (r *refs) volume(v *v1.VolumeSource) {
	if v.ConfigMap != nil {
		r.configMap(v.ConfigMap.Name)
	}
	if v.Secret != nil {
		r.secret(v.Secret.SecretName)
	}
	if v.Projected != nil {
		for _, s := range v.Projected.Sources {
			if s.ConfigMap != nil {
				r.configMap(s.ConfigMap.Name)
			}
			if s.Secret != nil {
				r.secret(s.Secret.Name)
			}
		}
	}
	if v.AzureFile != nil {
		r.secret(v.AzureFile.SecretName)
	}
	r.secretRef(driverSecret(v))
}

// driverSecret returns the secret reference of a volume's driver.
func driverSecret(v *v1.VolumeSource) *v1.LocalObjectReference {
	switch {
	case v.CSI != nil:
		return v.CSI.NodePublishSecretRef
	case v.FlexVolume != nil:
		return v.FlexVolume.SecretRef
	case v.ISCSI != nil:
		return v.ISCSI.SecretRef
	case v.RBD != nil:
		return v.RBD.SecretRef
	case v.CephFS != nil:
		return v.CephFS.SecretRef
	case v.Cinder != nil:
		return v.Cinder.SecretRef
	case v.ScaleIO != nil:
		return v.ScaleIO.SecretRef
	case v.StorageOS != nil:
		return v.StorageOS.SecretRef
	}
	return nil
}

func (r *refs) env(env []v1.EnvVar, from []v1.EnvFromSource) {
	for i := range env {
		source := env[i].ValueFrom
		if source == nil {
			continue
		}
		if source.ConfigMapKeyRef != nil {
			r.configMap(source.ConfigMapKeyRef.Name)
		}
		if source.SecretKeyRef != nil {
			r.secret(source.SecretKeyRef.Name)
		}
	}
	for i := range from {
		if from[i].ConfigMapRef != nil {
			r.configMap(from[i].ConfigMapRef.Name)
		}
		if from[i].SecretRef != nil {
			r.secret(from[i].SecretRef.Name)
		}
	}
}

// HasClaims reports whether any of the pods uses a persistent volume claim.
func HasClaims(pods []*v1.Pod) bool {
	for _, pod := range pods {
		for i := range pod.Spec.Volumes {
			if v := &pod.Spec.Volumes[i]; v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
				return true
			}
		}
	}
	return false
}

// LinksServices reports whether the containers of a pod have the services of its namespace in their environment.
func LinksServices(pod *v1.Pod) bool {
	return pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks
}

// ReadyAgain reports whether a running pod is not Ready although its containers and readiness gates are.
func ReadyAgain(pod *v1.Pod) bool {
	if pod.Status.Phase != v1.PodRunning || pod.DeletionTimestamp != nil {
		return false
	}
	is := func(name v1.PodConditionType, want v1.ConditionStatus) bool {
		for i := range pod.Status.Conditions {
			if c := &pod.Status.Conditions[i]; c.Type == name {
				return c.Status == want
			}
		}
		return false
	}
	for _, gate := range pod.Spec.ReadinessGates {
		if !is(gate.ConditionType, v1.ConditionTrue) {
			return false
		}
	}
	return is(v1.PodReady, v1.ConditionFalse) && is(v1.ContainersReady, v1.ConditionTrue)
}
