package v1alpha2

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/edgecore-io/edgecore/pkg/apis/strict"
)

// kubelet checks the kubelet's part. It allows what the kubelet allows, according to the documentation of
// KubeletConfiguration v1beta1.
func (c *checker) kubelet(p string, k *kubeletconfig.KubeletConfiguration) {
	c.AbsoluteOrNone(p+".staticPodPath", k.StaticPodPath)
	c.Absolute(p+".podLogsDir", k.PodLogsDir)
	c.Positive(p+".syncFrequency", k.SyncFrequency.Duration)
	c.Positive(p+".fileCheckFrequency", k.FileCheckFrequency.Duration)
	c.Positive(p+".runtimeRequestTimeout", k.RuntimeRequestTimeout.Duration)
	c.Socket(p+".containerRuntimeEndpoint", k.ContainerRuntimeEndpoint, DefaultCRISocket)
	if k.ImageServiceEndpoint != "" {
		c.Socket(p+".imageServiceEndpoint", k.ImageServiceEndpoint, DefaultCRISocket)
	}
	c.Positive(p+".streamingConnectionIdleTimeout", k.StreamingConnectionIdleTimeout.Duration)
	c.network(p, k)
	c.api(p, k)
	c.images(p, k)
	c.pods(p, k)
	c.cgroups(p, k)
	c.policies(p, k)
	c.evictions(p, k)
	c.node(p, k)
}

func (c *checker) network(p string, k *kubeletconfig.KubeletConfiguration) {
	c.Address(p+".address", k.Address)
	if k.ReadOnlyPort < 0 || k.ReadOnlyPort > 65535 {
		c.Fail(p+".readOnlyPort", k.ReadOnlyPort, "a port from 1 to 65535, or 0 for none")
	}
	for i, ip := range k.ClusterDNS {
		c.Address(fmt.Sprintf("%s.clusterDNS[%d]", p, i), ip)
	}
	if domain := strings.TrimSuffix(k.ClusterDomain, "."); domain != "" &&
		len(validation.IsDNS1123Subdomain(domain)) > 0 {
		c.Fail(p+".clusterDomain", k.ClusterDomain, "a DNS domain, such as cluster.local")
	}
	if k.ResolverConfig != nil {
		c.AbsoluteOrNone(p+".resolvConf", *k.ResolverConfig)
	}
	if k.PodCIDR != "" {
		for _, cidr := range strings.Split(k.PodCIDR, ",") {
			if _, err := netip.ParsePrefix(cidr); err != nil {
				c.Fail(p+".podCIDR", k.PodCIDR, "a subnet, such as 10.88.0.0/16")
				break
			}
		}
	}
	c.OneOf(p+".hairpinMode", k.HairpinMode, "promiscuous-bridge", "hairpin-veth", "none")
}

func (c *checker) images(p string, k *kubeletconfig.KubeletConfiguration) {
	optional(k.RegistryPullQPS, func(n int64) { c.AtLeast(p+".registryPullQPS", n, 0) })
	c.AtLeast(p+".registryBurst", int64(k.RegistryBurst), 0)
	optional(k.MaxParallelImagePulls, func(n int64) {
		c.AtLeast(p+".maxParallelImagePulls", n, 1)
		if n > 1 && (k.SerializeImagePulls == nil || *k.SerializeImagePulls) {
			c.Fail(p+".maxParallelImagePulls", n, "1, or serializeImagePulls: false")
		}
	})
	verify := string(k.ImagePullCredentialsVerificationPolicy)
	if verify != "" {
		c.OneOf(p+".imagePullCredentialsVerificationPolicy", verify, "NeverVerify", "NeverVerifyPreloadedImages",
			"NeverVerifyAllowlistedImages", "AlwaysVerify")
	}
	if n := len(k.PreloadedImagesVerificationAllowlist); n > 0 && verify != "NeverVerifyAllowlistedImages" {
		c.Fail(p+".preloadedImagesVerificationAllowlist", n,
			"none, or imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages")
	}
	optional(k.ImageGCHighThresholdPercent, func(n int64) { c.Within(p+".imageGCHighThresholdPercent", n, 0, 100) })
	optional(k.ImageGCLowThresholdPercent, func(n int64) {
		c.Within(p+".imageGCLowThresholdPercent", n, 0, 100)
		if high := k.ImageGCHighThresholdPercent; high != nil && n >= int64(*high) {
			c.Fail(p+".imageGCLowThresholdPercent", n, fmt.Sprintf("less than imageGCHighThresholdPercent, %d", *high))
		}
	})
	c.NotNegative(p+".imageMinimumGCAge", k.ImageMinimumGCAge.Duration)
	c.NotNegative(p+".imageMaximumGCAge", k.ImageMaximumGCAge.Duration)
}

func (c *checker) pods(p string, k *kubeletconfig.KubeletConfiguration) {
	c.AtLeast(p+".maxPods", int64(k.MaxPods), 1)
	c.AtLeast(p+".podsPerCore", int64(k.PodsPerCore), 0)
	optional(k.PodPidsLimit, func(n int64) {
		if n != -1 && n < 1 {
			c.Fail(p+".podPidsLimit", n, "a number of processes of 1 or more, or -1 for the node's limit")
		}
	})
	if d := k.CrashLoopBackOff.MaxContainerRestartPeriod; d != nil &&
		(d.Duration < time.Second || d.Duration > 5*time.Minute) {
		c.Fail(p+".crashLoopBackOff.maxContainerRestartPeriod", d.Duration.String(), "a duration from 1s to 5m")
	}
	c.quantity(p+".containerLogMaxSize", k.ContainerLogMaxSize)
	optional(k.ContainerLogMaxFiles, func(n int64) { c.AtLeast(p+".containerLogMaxFiles", n, 2) })
	optional(k.ContainerLogMaxWorkers, func(n int64) { c.AtLeast(p+".containerLogMaxWorkers", n, 1) })
	if d := k.ContainerLogMonitorInterval; d != nil && d.Duration < 3*time.Second {
		c.Fail(p+".containerLogMonitorInterval", d.Duration.String(), "a duration of 3s or more")
	}
	c.shutdown(p, k)
}

func (c *checker) cgroups(p string, k *kubeletconfig.KubeletConfiguration) {
	c.OneOf(p+".cgroupDriver", k.CgroupDriver, "cgroupfs", "systemd")
	if strings.Contains("/"+k.CgroupRoot+"/", "/../") {
		c.Fail(p+".cgroupRoot", k.CgroupRoot, "a cgroup such as /edge, without '..'")
	}
	if d := k.CPUCFSQuotaPeriod; d != nil && (d.Duration < time.Millisecond || d.Duration > time.Second) {
		c.Fail(p+".cpuCFSQuotaPeriod", d.Duration.String(), "a duration from 1ms to 1s")
	}
	if adj := k.OOMScoreAdj; adj != nil {
		c.Within(p+".oomScoreAdj", int64(*adj), -1000, 1000)
	}
	c.reserved(p+".systemReserved", k.SystemReserved)
	c.reserved(p+".kubeReserved", k.KubeReserved)
	for i, what := range k.EnforceNodeAllocatable {
		c.OneOf(fmt.Sprintf("%s.enforceNodeAllocatable[%d]", p, i), what,
			"none", "pods", "system-reserved", "system-reserved-compressible", "kube-reserved",
			"kube-reserved-compressible")
	}
	if slices.Contains(k.EnforceNodeAllocatable, "none") && len(k.EnforceNodeAllocatable) > 1 {
		c.Fail(p+".enforceNodeAllocatable", strings.Join(k.EnforceNodeAllocatable, ", "),
			"none alone, or the others without it")
	}
	for _, group := range []struct{ what, key, cgroup string }{
		{"system-reserved", "systemReservedCgroup", k.SystemReservedCgroup},
		{"kube-reserved", "kubeReservedCgroup", k.KubeReservedCgroup},
	} {
		compressible := slices.Contains(k.EnforceNodeAllocatable, group.what+"-compressible")
		whole := slices.Contains(k.EnforceNodeAllocatable, group.what)
		if (whole || compressible) && group.cgroup == "" {
			c.Fail(p+"."+group.key, group.cgroup, "the cgroup to which enforceNodeAllocatable applies "+group.what+
				", such as /system.slice")
		}
		if whole && compressible {
			c.Fail(p+".enforceNodeAllocatable", strings.Join(k.EnforceNodeAllocatable, ", "),
				group.what+" with or without -compressible, not both")
		}
	}
	if f := k.MemoryThrottlingFactor; f != nil && (*f <= 0 || *f > 1) {
		c.Fail(p+".memoryThrottlingFactor", *f, "a number above 0, up to 1")
	}
}

func (c *checker) reserved(p string, list map[string]string) {
	for _, key := range strict.SortedKeys(list) {
		c.OneOf(strict.Entry(p, key), key, "cpu", "memory", "ephemeral-storage", "pid")
		c.quantity(strict.Entry(p, key), list[key])
	}
}

func (c *checker) policies(p string, k *kubeletconfig.KubeletConfiguration) {
	// This agent does not place containers on cores and NUMA nodes as the kubelet does: a pod that relies on it would
	// run without it.
	c.only(p+".cpuManagerPolicy", k.CPUManagerPolicy, "none",
		"this agent gives no container cores of its own; leave it out, and give containers cpu requests and limits")
	c.only(p+".memoryManagerPolicy", k.MemoryManagerPolicy, "None",
		"this agent gives no container memory of a NUMA node of its own; leave it out")
	c.only(p+".topologyManagerPolicy", k.TopologyManagerPolicy, "none",
		"this agent does not align devices with cores; leave it out")
	c.OneOf(p+".topologyManagerScope", k.TopologyManagerScope, "container", "pod")
	c.OneOf(p+".configMapAndSecretChangeDetectionStrategy", string(k.ConfigMapAndSecretChangeDetectionStrategy), "Get",
		"Cache", "Watch")
	if swap := k.MemorySwap.SwapBehavior; swap != "" {
		c.OneOf(p+".memorySwap.swapBehavior", swap, "NoSwap", "LimitedSwap")
	}
}

// only accepts the one value that this agent supports of the kubelet's, and says why.
func (c *checker) only(path, value, allowed, why string) {
	if value != allowed {
		c.Fail(path, value, allowed+" ("+why+")")
	}
}

func (c *checker) evictions(p string, k *kubeletconfig.KubeletConfiguration) {
	for _, m := range []struct {
		name  string
		list  map[string]string
		check func(path, value string)
	}{
		{"evictionHard", k.EvictionHard, c.threshold},
		{"evictionSoft", k.EvictionSoft, c.threshold},
		{"evictionMinimumReclaim", k.EvictionMinimumReclaim, c.threshold},
		{"evictionSoftGracePeriod", k.EvictionSoftGracePeriod, c.grace},
	} {
		at := p + "." + m.name
		for _, signal := range strict.SortedKeys(m.list) {
			c.signal(strict.Entry(at, signal), signal)
			m.check(strict.Entry(at, signal), m.list[signal])
		}
	}
	for _, signal := range strict.SortedKeys(k.EvictionSoft) {
		if _, ok := k.EvictionSoftGracePeriod[signal]; !ok {
			c.Fail(strict.Entry(p+".evictionSoft", signal), k.EvictionSoft[signal],
				"an evictionSoftGracePeriod for it, too")
		}
	}
	c.NotNegative(p+".evictionPressureTransitionPeriod", k.EvictionPressureTransitionPeriod.Duration)
	c.AtLeast(p+".evictionMaxPodGracePeriod", int64(k.EvictionMaxPodGracePeriod), 0)
}

func (c *checker) signal(path, signal string) {
	signals := []string{
		"memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree",
		"containerfs.available", "containerfs.inodesFree", "allocatableMemory.available", "pid.available",
	}
	if !slices.Contains(signals, signal) {
		best, _ := strict.Nearest(signal, signals)
		c.Fail(path, signal, fmt.Sprintf("an eviction signal; did you mean %q?", best))
	}
}

func (c *checker) grace(path, value string) {
	if d, err := time.ParseDuration(value); err != nil || d < 0 {
		c.Fail(path, value, "a duration, such as 30s")
	}
}

func (c *checker) node(p string, k *kubeletconfig.KubeletConfiguration) {
	c.Positive(p+".nodeStatusUpdateFrequency", k.NodeStatusUpdateFrequency.Duration)
	c.Positive(p+".nodeStatusReportFrequency", k.NodeStatusReportFrequency.Duration)
	c.AtLeast(p+".nodeLeaseDurationSeconds", int64(k.NodeLeaseDurationSeconds), 1)
	optional(k.NodeStatusMaxImages, func(n int64) { c.AtLeast(p+".nodeStatusMaxImages", n, -1) })
	optional(k.EventRecordQPS, func(n int64) { c.AtLeast(p+".eventRecordQPS", n, 0) })
	c.AtLeast(p+".eventBurst", int64(k.EventBurst), 0)
	c.AtLeast(p+".maxOpenFiles", k.MaxOpenFiles, 0)
	for i, taint := range k.RegisterWithTaints {
		at := fmt.Sprintf("%s.registerWithTaints[%d]", p, i)
		if len(validation.IsQualifiedName(taint.Key)) > 0 {
			c.Fail(at+".key", taint.Key, "a taint's key, such as example.com/gpu")
		}
		if len(validation.IsValidLabelValue(taint.Value)) > 0 {
			c.Fail(at+".value", taint.Value, "a label's value")
		}
		c.OneOf(at+".effect", string(taint.Effect), "NoSchedule", "PreferNoSchedule", "NoExecute")
	}
}
