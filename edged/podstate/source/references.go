package source

import (
	v1 "k8s.io/api/core/v1"
)

// apiReference returns the kind of an API object that a pod refers to, "" if it refers to none. The API server takes no
// mirror pod for such a pod, and a kubelet since 1.37 refuses its manifest.
func apiReference(pod *v1.Pod) string {
	s := &pod.Spec
	switch {
	case s.ServiceAccountName != "":
		return "a ServiceAccount"
	case len(s.ImagePullSecrets) > 0:
		return "a Secret"
	case len(s.ResourceClaims) > 0:
		return "a ResourceClaim"
	}
	for i := range s.InitContainers {
		if kind := envReference(&s.InitContainers[i]); kind != "" {
			return kind
		}
	}
	for i := range s.Containers {
		if kind := envReference(&s.Containers[i]); kind != "" {
			return kind
		}
	}
	for i := range s.Volumes {
		if kind := volumeReference(&s.Volumes[i].VolumeSource); kind != "" {
			return kind
		}
	}
	return ""
}

func envReference(c *v1.Container) string {
	for _, from := range c.EnvFrom {
		switch {
		case from.SecretRef != nil:
			return "a Secret"
		case from.ConfigMapRef != nil:
			return "a ConfigMap"
		}
	}
	for _, e := range c.Env {
		switch {
		case e.ValueFrom == nil:
		case e.ValueFrom.SecretKeyRef != nil:
			return "a Secret"
		case e.ValueFrom.ConfigMapKeyRef != nil:
			return "a ConfigMap"
		}
	}
	return ""
}

func volumeReference(vol *v1.VolumeSource) string {
	switch {
	case vol.Secret != nil, vol.AzureFile != nil:
		return "a Secret"
	case vol.ConfigMap != nil:
		return "a ConfigMap"
	case vol.PersistentVolumeClaim != nil, vol.Ephemeral != nil:
		return "a PersistentVolumeClaim"
	case vol.CSI != nil:
		return "a CSIDriver"
	case vol.Projected == nil:
		return ""
	}
	for _, from := range vol.Projected.Sources {
		switch {
		case from.Secret != nil:
			return "a Secret"
		case from.ConfigMap != nil:
			return "a ConfigMap"
		case from.ServiceAccountToken != nil:
			return "a ServiceAccount"
		case from.ClusterTrustBundle != nil:
			return "a ClusterTrustBundle"
		}
	}
	return ""
}
