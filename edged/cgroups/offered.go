package cgroups

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ContainerResources makes the CRI form of a container's resources on this node: without the limits that its kernel cannot
// set, as on a Raspberry Pi that was booted without the memory cgroup. The container would not start with them, and
// the agent's condition says that they are not enforced.
func (m *Manager) ContainerResources(pod *v1.Pod, c *v1.Container) *runtimeapi.LinuxContainerResources {
	return criOffered(ContainerResources(pod, c, m.opts.ResourceOptions), m.Missing())
}

// Missing are the controllers, of cpu, memory and pids, that the kernel does not offer.
func (m *Manager) Missing() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.missing
}

// criOffered leaves out of resources what the kernel cannot limit. It is pure but for the resources, which are its own.
func criOffered(r *runtimeapi.LinuxContainerResources, missing []string) *runtimeapi.LinuxContainerResources {
	if slices.Contains(missing, "cpu") {
		r.CpuShares, r.CpuQuota, r.CpuPeriod = 0, 0, 0
	}
	if slices.Contains(missing, "memory") {
		r.MemoryLimitInBytes, r.MemorySwapLimitInBytes = 0, 0
	}
	return r
}
