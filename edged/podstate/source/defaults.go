package source

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// SetDefaults fills in what the API server would have filled in for a pod, so that a manifest on
// the node means the same as one in the cloud. Source: the field documentation of k8s.io/api/core/v1.
// It is idempotent, and does nothing to a pod that came through an API server.
func SetDefaults(pod *v1.Pod) {
	spec := &pod.Spec
	setDefault(&spec.RestartPolicy, v1.RestartPolicyAlways)
	setDefault(&spec.DNSPolicy, v1.DNSClusterFirst)
	setDefault(&spec.SchedulerName, v1.DefaultSchedulerName)
	if spec.TerminationGracePeriodSeconds == nil {
		spec.TerminationGracePeriodSeconds = ptr.To(int64(v1.DefaultTerminationGracePeriodSeconds))
	}
	if spec.Priority == nil {
		spec.Priority = systemPriority(spec.PriorityClassName)
	}
	if spec.SecurityContext == nil {
		spec.SecurityContext = &v1.PodSecurityContext{}
	}
	if spec.EnableServiceLinks == nil {
		spec.EnableServiceLinks = ptr.To(v1.DefaultEnableServiceLinks)
	}
	for i := range spec.InitContainers {
		setContainerDefaults(&spec.InitContainers[i], spec.HostNetwork)
	}
	for i := range spec.Containers {
		setContainerDefaults(&spec.Containers[i], spec.HostNetwork)
	}
	for i := range spec.Volumes {
		setVolumeDefaults(&spec.Volumes[i])
	}
}

// systemPriority is that of a class that every cluster has; others are known to the API server only.
func systemPriority(class string) *int32 {
	switch class {
	case "system-cluster-critical":
		return ptr.To[int32](2000000000)
	case "system-node-critical":
		return ptr.To[int32](2000001000)
	}
	return nil
}

func setDefault[T ~string](field *T, value T) {
	if *field == "" {
		*field = value
	}
}

func setContainerDefaults(c *v1.Container, hostNetwork bool) {
	setDefault(&c.TerminationMessagePath, v1.TerminationMessagePathDefault)
	setDefault(&c.TerminationMessagePolicy, v1.TerminationMessageReadFile)
	setDefault(&c.ImagePullPolicy, defaultPullPolicy(c.Image))
	for i := range c.Ports {
		setDefault(&c.Ports[i].Protocol, v1.ProtocolTCP)
		if hostNetwork && c.Ports[i].HostPort == 0 {
			c.Ports[i].HostPort = c.Ports[i].ContainerPort
		}
	}
	for name, limit := range c.Resources.Limits {
		if _, ok := c.Resources.Requests[name]; !ok {
			if c.Resources.Requests == nil {
				c.Resources.Requests = v1.ResourceList{}
			}
			c.Resources.Requests[name] = limit.DeepCopy()
		}
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil && from.FieldRef != nil {
			setDefault(&from.FieldRef.APIVersion, "v1")
		}
	}
	for _, probe := range []*v1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		setProbeDefaults(probe)
	}
	if c.Lifecycle != nil {
		for _, h := range []*v1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil && h.HTTPGet != nil {
				setHTTPGetDefaults(h.HTTPGet)
			}
		}
	}
}

// defaultPullPolicy is Always for the tag latest or none, otherwise IfNotPresent.
func defaultPullPolicy(image string) v1.PullPolicy {
	if strings.Contains(image, "@") {
		return v1.PullIfNotPresent
	}
	name := image[strings.LastIndex(image, "/")+1:]
	if _, tag, tagged := strings.Cut(name, ":"); tagged && tag != "latest" {
		return v1.PullIfNotPresent
	}
	return v1.PullAlways
}

func setProbeDefaults(p *v1.Probe) {
	if p == nil {
		return
	}
	for field, value := range map[*int32]int32{&p.TimeoutSeconds: 1, &p.PeriodSeconds: 10, &p.SuccessThreshold: 1,
		&p.FailureThreshold: 3} {
		if *field == 0 {
			*field = value
		}
	}
	if p.HTTPGet != nil {
		setHTTPGetDefaults(p.HTTPGet)
	}
	if p.GRPC != nil && p.GRPC.Service == nil {
		p.GRPC.Service = ptr.To("")
	}
}

func setHTTPGetDefaults(a *v1.HTTPGetAction) {
	setDefault(&a.Path, "/")
	setDefault(&a.Scheme, v1.URISchemeHTTP)
}

func setVolumeDefaults(vol *v1.Volume) {
	if vol.VolumeSource == (v1.VolumeSource{}) {
		vol.EmptyDir = &v1.EmptyDirVolumeSource{}
	}
	setMode := func(mode **int32, value int32) {
		if *mode == nil {
			*mode = ptr.To(value)
		}
	}
	switch {
	case vol.ConfigMap != nil:
		setMode(&vol.ConfigMap.DefaultMode, v1.ConfigMapVolumeSourceDefaultMode)
	case vol.Secret != nil:
		setMode(&vol.Secret.DefaultMode, v1.SecretVolumeSourceDefaultMode)
	case vol.DownwardAPI != nil:
		setMode(&vol.DownwardAPI.DefaultMode, v1.DownwardAPIVolumeSourceDefaultMode)
	case vol.Projected != nil:
		setMode(&vol.Projected.DefaultMode, v1.ProjectedVolumeSourceDefaultMode)
	case vol.Image != nil:
		setDefault(&vol.Image.PullPolicy, defaultPullPolicy(vol.Image.Reference))
	case vol.HostPath != nil && vol.HostPath.Type == nil:
		vol.HostPath.Type = ptr.To(v1.HostPathUnset)
	}
}
