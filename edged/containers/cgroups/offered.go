package cgroups

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ContainerResources makes the CRI form of a container's resources on this node: without the limits that its kernel
// cannot set, as on a Raspberry Pi that was booted without the memory cgroup. The container would not start with them,
// and the agent's condition says that they are not enforced.
func (m *Manager) ContainerResources(pod *v1.Pod, c *v1.Container) *runtimeapi.LinuxContainerResources {
	k := m.kernelNow()
	return criOffered(containerResources(pod, c, m.opts.ResourceOptions, k), k.missing)
}

// Missing are the controllers, of cpu, memory and pids, that the kernel does not offer.
func (m *Manager) Missing() []string { return m.kernelNow().missing }

func (m *Manager) kernelNow() kernel {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kernel
}

// criOffered leaves out of resources what the kernel cannot limit. It changes r and returns it.
func criOffered(r *runtimeapi.LinuxContainerResources, missing []string) *runtimeapi.LinuxContainerResources {
	if slices.Contains(missing, "cpu") {
		r.CpuShares, r.CpuQuota, r.CpuPeriod = 0, 0, 0
	}
	if slices.Contains(missing, "memory") {
		r.MemoryLimitInBytes, r.MemorySwapLimitInBytes = 0, 0
		maps.DeleteFunc(r.Unified, func(file, _ string) bool { return strings.HasPrefix(file, "memory.") })
	}
	return r
}
