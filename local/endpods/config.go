package endpods

import (
	"strings"

	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/containers/cgroups"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

// FromConfig returns what the configuration says about the pods of a stopped agent. How long they may take, whether
// they may be killed, and where the output goes is up to the caller.
func FromConfig(cfg *v1alpha2.EdgeCore) Options {
	own := &cfg.Modules.Edged
	kubelet := &own.TailoredKubeletConfig
	return Options{
		RuntimeEndpoint: kubelet.ContainerRuntimeEndpoint,
		ImageEndpoint:   kubelet.ImageServiceEndpoint,
		RuntimeTimeout:  kubelet.RuntimeRequestTimeout.Duration,
		RootDir:         own.RootDirectory,
		PodLogsDir:      kubelet.PodLogsDir,
		Interval:        DefaultInterval,
		Cgroups:         podCgroups(own),
		OwnCgroups:      strings.Trim(kubelet.CgroupRoot, "/") == "",
		NoPodCgroups:    !ptr.Deref(kubelet.CgroupsPerQOS, true),
	}
}

// podCgroups returns the cgroups of the agent's pods on this device.
func podCgroups(own *v1alpha2.Edged) Cgroups {
	k := &own.TailoredKubeletConfig
	return cgroups.New(cgroups.Options{
		Driver: k.CgroupDriver, Root: k.CgroupRoot, PerQOS: ptr.Deref(k.CgroupsPerQOS, true),
	})
}
