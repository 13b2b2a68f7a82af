package main

import (
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/edgecore-io/edgecore/edged/shutdown"
)

// shutdownOptions works out what the configuration says about the shutdown of the device.
func shutdownOptions(kubelet *kubeletconfig.KubeletConfiguration) shutdown.Options {
	return shutdown.Options{Groups: shutdown.GroupsOf(kubelet)}
}
