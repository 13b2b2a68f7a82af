package v1alpha2

import (
	"fmt"

	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

// shutdown checks what several keys say about the shutdown of the device.
func (c *checker) shutdown(p string, k *kubeletconfig.KubeletConfiguration) {
	all, critical := k.ShutdownGracePeriod.Duration, k.ShutdownGracePeriodCriticalPods.Duration
	if critical > all {
		c.Fail(p+".shutdownGracePeriodCriticalPods", critical.String(), "a part of shutdownGracePeriod, "+all.String())
	}
	at := p + ".shutdownGracePeriodByPodPriority"
	if len(k.ShutdownGracePeriodByPodPriority) > 0 && (all > 0 || critical > 0) {
		c.Fail(at, len(k.ShutdownGracePeriodByPodPriority),
			"either this list, or shutdownGracePeriod and shutdownGracePeriodCriticalPods")
	}
	seen := map[int32]bool{}
	for i, e := range k.ShutdownGracePeriodByPodPriority {
		entry := fmt.Sprintf("%s[%d]", at, i)
		if seen[e.Priority] {
			c.Fail(entry+".priority", e.Priority, "each priority once")
		}
		seen[e.Priority] = true
		c.AtLeast(entry+".shutdownGracePeriodSeconds", e.ShutdownGracePeriodSeconds, 0)
	}
}
