package main

import (
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/garbage"
	"github.com/edgecore-io/edgecore/edged/gc"
	"github.com/edgecore-io/edgecore/edged/imagegc"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
)

// gcOptions works out what the configuration says about images and containers that nobody needs.
func gcOptions(own *v1alpha2.Edged) garbage.Policy {
	kubelet := &own.TailoredKubeletConfig
	return garbage.Policy{
		Images: imagegc.Policy{
			HighPercent: int(ptr.Deref(kubelet.ImageGCHighThresholdPercent, 85)), LowPercent: int(ptr.Deref(kubelet.ImageGCLowThresholdPercent, 80)),
			MinAge: kubelet.ImageMinimumGCAge.Duration, MaxAge: kubelet.ImageMaximumGCAge.Duration,
		},
		Containers: gc.Policy{MinAge: own.MinimumGCAge.Duration, PerContainer: int(own.MaxPerPodContainerCount), Total: int(own.MaxContainerCount)},
	}
}
