package cgroups

import (
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/admission"
)

// SandboxResources tells a runtime how large a pod is without its overhead, and how large the overhead is. A runtime
// that makes a virtual machine for each pod makes it so large; others pass it on to their plugins.
func (m *Manager) SandboxResources(pod *v1.Pod) (resources, overhead *runtimeapi.LinuxContainerResources) {
	k := m.kernelNow()
	resources, overhead = sandboxResources(pod, m.opts.ResourceOptions, k)
	return criOffered(resources, k.missing), criOffered(overhead, k.missing)
}

// SandboxUpdate is what SandboxResources says of a pod that is resized: the values of its cgroup, without its overhead.
func (m *Manager) SandboxUpdate(pod *v1.Pod) (resources, overhead *runtimeapi.LinuxContainerResources) {
	_, overhead = m.SandboxResources(pod)
	r := PodResources(admission.WithoutOverhead(pod), m.opts.ResourceOptions, 0)
	resources = &runtimeapi.LinuxContainerResources{
		CpuShares:          int64(r.CPUShares),
		CpuQuota:           r.CPUQuota,
		CpuPeriod:          int64(r.CPUPeriod),
		MemoryLimitInBytes: r.Memory,
	}
	return criOffered(resources, m.Missing()), overhead
}

func sandboxResources(
	pod *v1.Pod, opts ResourceOptions, k kernel,
) (resources, overhead *runtimeapi.LinuxContainerResources) {
	bare := admission.WithoutOverhead(pod)
	requests := podRequests(bare)
	limits := admission.Limits(bare)
	resources = opts.linuxResources(requests[v1.ResourceCPU], limits[v1.ResourceCPU], limits[v1.ResourceMemory], k)
	overhead = &runtimeapi.LinuxContainerResources{}
	if o := pod.Spec.Overhead; o != nil {
		overhead = opts.linuxResources(o[v1.ResourceCPU], o[v1.ResourceCPU], o[v1.ResourceMemory], k)
	}
	return resources, overhead
}
