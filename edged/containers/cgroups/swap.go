package cgroups

import (
	"strconv"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/admission"
)

// limitSwap sets what a container may swap: nothing, unless the node lets its pods swap. What secrets lie in memory
// would otherwise reach the disk. Where the kernel cannot limit swap, nothing is set: the container would not start
// with it.
func (o ResourceOptions) limitSwap(pod *v1.Pod, c *v1.Container, r *runtimeapi.LinuxContainerResources, k kernel) {
	switch {
	case !k.swap:
	case k.unified:
		if r.Unified == nil {
			r.Unified = map[string]string{}
		}
		r.Unified[fileSwapMax] = strconv.FormatInt(o.swapOf(pod, c), 10)
	default:
		// cgroup v1 limits memory and swap together. 0 is no limit of either.
		r.MemorySwapLimitInBytes = r.MemoryLimitInBytes
	}
}

// MaySwap reports whether the node lets a container of a pod swap.
func (m *Manager) MaySwap(pod *v1.Pod, c *v1.Container) bool {
	k := m.kernelNow()
	return k.unified && k.swap && m.opts.maySwap(pod, c)
}

// maySwap reports whether a container may swap on cgroup v2: one of a Burstable pod that requests less memory than its
// limit.
func (o ResourceOptions) maySwap(pod *v1.Pod, c *v1.Container) bool {
	// Both are 0 where neither is set.
	same := c.Resources.Requests.Memory().Cmp(*c.Resources.Limits.Memory()) == 0
	return o.LimitedSwap && !same && !admission.Critical(pod) && admission.QOS(pod) == v1.PodQOSBurstable
}

// swapOf is what a container may swap on cgroup v2, in bytes: the part of the node's swap that its memory request is of
// the node's memory.
func (o ResourceOptions) swapOf(pod *v1.Pod, c *v1.Container) int64 {
	request := c.Resources.Requests.Memory().Value()
	if !o.maySwap(pod, c) || o.MemoryCapacity <= 0 || request > o.MemoryCapacity {
		return 0
	}
	return int64(float64(request) / float64(o.MemoryCapacity) * float64(o.SwapCapacity))
}
