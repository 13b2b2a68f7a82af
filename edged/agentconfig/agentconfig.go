// Package agentconfig works out what the agent's configuration means to its parts: the options that each part gets when
// the agent starts, the settings that change while it runs, and what the commands on a stopped agent's files need.
//
// It owns this translation and its defaults, and nothing else does it. It promises that a key that package v1alpha2
// calls live changes the options, and that a key that is called reloadable changes the settings: its tests go through
// both lists. Apart from the node's size and the age of files, which it measures, it depends on the configuration
// alone.
package agentconfig

import (
	"fmt"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/containers/cgroups"
	"github.com/edgecore-io/edgecore/edged/containers/dns"
	"github.com/edgecore-io/edgecore/edged/containers/garbage"
	"github.com/edgecore-io/edgecore/edged/containers/gc"
	"github.com/edgecore-io/edgecore/edged/containers/imagegc"
	"github.com/edgecore-io/edgecore/edged/containers/images"
	"github.com/edgecore-io/edgecore/edged/containers/logrotate"
	"github.com/edgecore-io/edgecore/edged/containers/security"
	"github.com/edgecore-io/edgecore/edged/node/node"
	"github.com/edgecore-io/edgecore/edged/node/nodeallocatable"
	"github.com/edgecore-io/edgecore/edged/node/nodepressure"
	"github.com/edgecore-io/edgecore/edged/options"
	"github.com/edgecore-io/edgecore/edged/pods/shutdown"
	"github.com/edgecore-io/edgecore/edged/podstate/eventreport"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/version"
)

// swapLimited is the memorySwap.swapBehavior with which pods may swap.
const swapLimited = "LimitedSwap"

// EdgedOptions returns what the configuration says about pods. It measures the size of the node.
func EdgedOptions(cfg *v1alpha2.EdgeCore) (options.Options, error) {
	own := &cfg.Modules.Edged
	kubelet := &own.TailoredKubeletConfig
	capacity, err := node.Capacity(kubelet.MaxPods, own.RootDirectory)
	if err != nil {
		return options.Options{}, fmt.Errorf("capacity of the node: %w", err)
	}
	split, err := nodeallocatable.New(own, capacity)
	if err != nil {
		return options.Options{}, fmt.Errorf("modules.edged.tailoredKubeletConfig: %w", err)
	}
	if _, err := security.NewSysctls("", kubelet.AllowedUnsafeSysctls); err != nil {
		return options.Options{}, fmt.Errorf("modules.edged.tailoredKubeletConfig.%w", err)
	}
	var maxBackoff time.Duration
	if d := kubelet.CrashLoopBackOff.MaxContainerRestartPeriod; d != nil {
		maxBackoff = d.Duration
	}
	resources := cgroups.ResourceOptions{
		CFSQuota:             ptr.Deref(kubelet.CPUCFSQuota, true),
		MemoryCapacity:       capacity.Memory().Value(),
		HugePageSizes:        node.HugePageSizes(),
		SingleProcessOOMKill: ptr.Deref(kubelet.SingleProcessOOMKill, false),
		LimitedSwap:          kubelet.MemorySwap.SwapBehavior == swapLimited,
		SwapCapacity:         node.SwapCapacity(),
	}
	if kubelet.CPUCFSQuotaPeriod != nil {
		resources.CFSPeriod = kubelet.CPUCFSQuotaPeriod.Duration
	}
	logs, err := logOptions(kubelet)
	if err != nil {
		return options.Options{}, err
	}
	return options.Options{
		NodeName:        own.HostnameOverride,
		NodeIP:          v1alpha2.NodeIPs(own.NodeIP),
		Version:         version.Version(),
		Interface:       own.CustomInterfaceName,
		StatusImages:    int(ptr.Deref(kubelet.NodeStatusMaxImages, 0)),
		Capacity:        capacity,
		Allocatable:     split.Allocatable,
		Labels:          own.NodeLabels,
		Eviction:        nodepressure.Settings{KernelMemcg: kubelet.KernelMemcgNotification, Config: split.Eviction},
		RootDir:         own.RootDirectory,
		PodLogsDir:      kubelet.PodLogsDir,
		StaticPodDir:    kubelet.StaticPodPath,
		FileCheck:       kubelet.FileCheckFrequency.Duration,
		Resync:          kubelet.SyncFrequency.Duration,
		StorePath:       cfg.Database.DataSource,
		RuntimeEndpoint: kubelet.ContainerRuntimeEndpoint,
		ImageEndpoint:   kubelet.ImageServiceEndpoint,
		RuntimeTimeout:  kubelet.RuntimeRequestTimeout.Duration,
		Node:            nodeOptions(cfg),
		Events: eventreport.Options{
			Enable: own.ReportEvent && cfg.Modules.EdgeHub.Enable,
			QPS:    float64(ptr.Deref(kubelet.EventRecordQPS, 50)), Burst: int(kubelet.EventBurst),
		},
		StreamIdle:           kubelet.StreamingConnectionIdleTimeout.Duration,
		Listen:               options.ListenAddress(kubelet.Address, kubelet.ReadOnlyPort),
		API:                  apiOptions(own),
		SeccompDefault:       own.SeccompDefault || ptr.Deref(kubelet.SeccompDefault, false),
		MaxBackoff:           maxBackoff,
		AllowedUnsafeSysctls: kubelet.AllowedUnsafeSysctls,
		Logs:                 logs,
		Shutdown:             shutdown.Options{Groups: shutdown.GroupsOf(kubelet)},
		Images: images.Options{
			Serialize:      ptr.Deref(kubelet.SerializeImagePulls, true),
			MaxParallel:    int(ptr.Deref(kubelet.MaxParallelImagePulls, 0)),
			QPS:            float64(ptr.Deref(kubelet.RegistryPullQPS, 5)),
			Burst:          int(kubelet.RegistryBurst),
			CredentialsDir: own.RootDirectory,
			Records:        filepath.Join(own.RootDirectory, "image_manager"),
			Verify:         kubelet.ImagePullCredentialsVerificationPolicy,
			Allowlist:      kubelet.PreloadedImagesVerificationAllowlist,
		},
		GC: gcOptions(own),
		Cgroups: cgroups.Options{
			Root:            kubelet.CgroupRoot,
			Driver:          kubelet.CgroupDriver,
			PerQOS:          ptr.Deref(kubelet.CgroupsPerQOS, true),
			PodPids:         ptr.Deref(kubelet.PodPidsLimit, -1),
			Pods:            split.Pods,
			Reserved:        split.Reserved,
			ResourceOptions: resources,
		},
		DNS: dns.Config{
			ClusterDNS:    v1alpha2.ClusterDNS(kubelet.ClusterDNS),
			ClusterDomain: kubelet.ClusterDomain,
			ResolvConf:    ptr.Deref(kubelet.ResolverConfig, "/etc/resolv.conf"),
			Resolved:      "/run/systemd/resolve/resolv.conf",
			Standalone:    !cfg.Modules.EdgeHub.Enable,
		},
	}, nil
}

// nodeOptions works out what the configuration says about the Node in the cluster; nil without a link to one.
func nodeOptions(cfg *v1alpha2.EdgeCore) *node.Options {
	if !cfg.Modules.EdgeHub.Enable {
		return nil
	}
	own := &cfg.Modules.Edged
	kubelet := &own.TailoredKubeletConfig
	return &node.Options{
		Labels:      own.NodeLabels,
		Taints:      kubelet.RegisterWithTaints,
		Schedulable: own.RegisterSchedulable,
		PodCIDR:     kubelet.PodCIDR,
		Register:    ptr.Deref(kubelet.RegisterNode, true),
		Check:       kubelet.NodeStatusUpdateFrequency.Duration,
		Report:      kubelet.NodeStatusReportFrequency.Duration,
		Lease:       time.Duration(kubelet.NodeLeaseDurationSeconds) * time.Second,
	}
}

// gcOptions works out what the configuration says about images and containers that nobody needs.
func gcOptions(own *v1alpha2.Edged) garbage.Policy {
	kubelet := &own.TailoredKubeletConfig
	return garbage.Policy{
		Images: imagegc.Policy{
			HighPercent: int(ptr.Deref(kubelet.ImageGCHighThresholdPercent, 85)),
			LowPercent:  int(ptr.Deref(kubelet.ImageGCLowThresholdPercent, 80)),
			MinAge:      kubelet.ImageMinimumGCAge.Duration,
			MaxAge:      kubelet.ImageMaximumGCAge.Duration,
		},
		Containers: gc.Policy{MinAge: own.MinimumGCAge.Duration, PerContainer: int(own.MaxPerPodContainerCount),
			Total: int(own.MaxContainerCount)},
	}
}

// logOptions works out what the configuration says about the logs of containers.
func logOptions(kubelet *kubeletconfig.KubeletConfiguration) (logrotate.Options, error) {
	size, err := resource.ParseQuantity(kubelet.ContainerLogMaxSize)
	if err != nil {
		return logrotate.Options{}, fmt.Errorf("modules.edged.tailoredKubeletConfig.containerLogMaxSize: %w", err)
	}
	opts := logrotate.Options{
		MaxSize: size.Value(), MaxFiles: int(ptr.Deref(kubelet.ContainerLogMaxFiles, 5)),
		Workers: int(ptr.Deref(kubelet.ContainerLogMaxWorkers, 1)),
	}
	if kubelet.ContainerLogMonitorInterval != nil {
		opts.Interval = kubelet.ContainerLogMonitorInterval.Duration
	}
	return opts, nil
}
