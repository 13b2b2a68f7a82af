package main

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/logrotate"
)

// logOptions works out what the configuration says about the logs of containers.
func logOptions(kubelet *kubeletconfig.KubeletConfiguration) (logrotate.Options, error) {
	size, err := resource.ParseQuantity(kubelet.ContainerLogMaxSize)
	if err != nil {
		return logrotate.Options{}, fmt.Errorf("modules.edged.tailoredKubeletConfig.containerLogMaxSize: %w", err)
	}
	opts := logrotate.Options{
		MaxSize: size.Value(), MaxFiles: int(ptr.Deref(kubelet.ContainerLogMaxFiles, 5)), Workers: int(ptr.Deref(kubelet.ContainerLogMaxWorkers, 1)),
	}
	if kubelet.ContainerLogMonitorInterval != nil {
		opts.Interval = kubelet.ContainerLogMonitorInterval.Duration
	}
	return opts, nil
}
