package cgroups

import (
	"strconv"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/admission"
)

// limitSwap sets what a container may swap: nothing, unless the node lets its pods swap. What secrets lie in memory would
// otherwise reach the disk. Where the kernel cannot limit swap, nothing is set: the container would not start with it.
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

// swapOf is what a container may swap on cgroup v2, in bytes: the part of the node's swap that its memory request is of the
// node's memory.
func (o ResourceOptions) swapOf(pod *v1.Pod, c *v1.Container) int64 {
	request, limit := c.Resources.Requests.Memory(), c.Resources.Limits.Memory()
	switch {
	case !o.LimitedSwap, admission.Critical(pod), QOS(pod) != v1.PodQOSBurstable:
		return 0
	case request.Cmp(*limit) == 0: // neither is set, or both are the same
		return 0
	case o.MemoryCapacity <= 0, request.Value() > o.MemoryCapacity:
		return 0
	}
	return int64(float64(request.Value()) / float64(o.MemoryCapacity) * float64(o.SwapCapacity))
}
