package cgroups

import (
	"maps"
	"math"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/admission"
	"github.com/edgecore-io/edgecore/edged/podstate/restart"
)

// Values of the kernel's cpu controller, as documented with "Resource Management for Pods and Containers".
const (
	minShares     = 2
	maxShares     = 262144
	sharesPerCPU  = 1024
	milliPerCPU   = 1000
	minQuota      = 1000 // microseconds: the kernel takes no less
	defaultPeriod = 100 * time.Millisecond
)

// How eager the kernel is to kill a container when memory runs out, as documented with "Node-pressure
// Eviction": from -997 (Guaranteed) to 1000 (BestEffort).
const (
	oomGuaranteed = -997
	oomBestEffort = 1000
	// oomBurstableMin keeps a Burstable container above the agent and the Guaranteed ones.
	oomBurstableMin = 3
	// priorityNodeCritical is the priority of class system-node-critical.
	priorityNodeCritical = 2000001000
)

// ResourceOptions are the node's settings for containers.
type ResourceOptions struct {
	// CFSQuota enforces cpu limits.
	CFSQuota bool
	// CFSPeriod is the period of the quota; zero is 100 ms.
	CFSPeriod time.Duration
	// MemoryCapacity is the node's memory, in bytes.
	MemoryCapacity int64
	// HugePageSizes are those that the node has, in bytes.
	HugePageSizes []int64
	// SingleProcessOOMKill lets the kernel kill one process of a container whose memory runs out, instead of all of
	// them. cgroup v1 always does.
	SingleProcessOOMKill bool
	// LimitedSwap lets containers of Burstable pods swap, in proportion to their memory requests; without it no
	// container does. SwapCapacity is the node's swap, in bytes.
	LimitedSwap  bool
	SwapCapacity int64
}

// Shares converts thousandths of a cpu into cpu shares.
func Shares(milli int64) uint64 {
	if milli <= 0 {
		return minShares
	}
	return uint64(min(max(milli*sharesPerCPU/milliPerCPU, minShares), maxShares))
}

// Quota converts a limit in thousandths of a cpu into microseconds per period; 0 is no limit.
func Quota(milli int64, period time.Duration) int64 {
	if milli <= 0 {
		return 0
	}
	return max(milli*period.Microseconds()/milliPerCPU, minQuota)
}

// containerResources makes the CRI form of a container's resources. A limit that the container does not have is the
// pod's, where the pod as a whole has one.
func containerResources(
	pod *v1.Pod, c *v1.Container, opts ResourceOptions, k kernel,
) *runtimeapi.LinuxContainerResources {
	cpuLimit, memoryLimit := limitOf(pod, c, v1.ResourceCPU), limitOf(pod, c, v1.ResourceMemory)
	cpuRequest, asked := c.Resources.Requests[v1.ResourceCPU]
	if !asked {
		cpuRequest = cpuLimit
	}
	out := opts.linuxResources(cpuRequest, cpuLimit, memoryLimit, k)
	out.OomScoreAdj = oomScore(pod, c, opts.MemoryCapacity)
	limits := maps.Clone(c.Resources.Limits)
	if r := pod.Spec.Resources; r != nil {
		limits = maps.Clone(r.Limits)
		if limits == nil {
			limits = v1.ResourceList{}
		}
		maps.Copy(limits, c.Resources.Limits)
	}
	out.HugepageLimits = criHuge(hugeLimits(limits, opts.HugePageSizes))
	opts.limitSwap(pod, c, out, k)
	return out
}

// limitOf is the limit of a container, or that of its pod where it has none.
func limitOf(pod *v1.Pod, c *v1.Container, name v1.ResourceName) resource.Quantity {
	limit := c.Resources.Limits[name]
	if r := pod.Spec.Resources; limit.IsZero() && r != nil {
		return r.Limits[name]
	}
	return limit
}

// linuxResources makes the CRI form of amounts of cpu and memory, of a container, of a sandbox or of its overhead.
func (o ResourceOptions) linuxResources(
	cpuRequest, cpuLimit, memoryLimit resource.Quantity, k kernel,
) *runtimeapi.LinuxContainerResources {
	out := &runtimeapi.LinuxContainerResources{
		CpuShares:          int64(Shares(cpuRequest.MilliValue())),
		MemoryLimitInBytes: memoryLimit.Value(),
	}
	if o.CFSQuota {
		period := o.period()
		out.CpuPeriod, out.CpuQuota = period.Microseconds(), Quota(cpuLimit.MilliValue(), period)
	}
	if k.oomGroup && !o.SingleProcessOOMKill {
		// A container that has lost one of its processes would run on damaged, without a restart.
		out.Unified = map[string]string{fileOOMGroup: "1"}
	}
	return out
}

func (o ResourceOptions) period() time.Duration {
	if o.CFSPeriod <= 0 {
		return defaultPeriod
	}
	return o.CFSPeriod
}

// oomScore is how eager the kernel is to kill a container. A sidecar goes no sooner than the regular container of its
// pod that asks for the least memory.
func oomScore(pod *v1.Pod, c *v1.Container, capacity int64) int64 {
	asked := c.Resources.Requests.Memory().Value()
	if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways && initContainer(pod, c) {
		asked = max(asked, leastMemory(pod))
	}
	return oomScoreAdj(pod, asked, capacity)
}

// leastMemory is the smallest memory request among the regular containers of a pod.
func leastMemory(pod *v1.Pod) int64 {
	least := int64(math.MaxInt64)
	for i := range pod.Spec.Containers {
		least = min(least, pod.Spec.Containers[i].Resources.Requests.Memory().Value())
	}
	if len(pod.Spec.Containers) == 0 {
		return 0
	}
	return least
}

func initContainer(pod *v1.Pod, c *v1.Container) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(k v1.Container) bool { return k.Name == c.Name })
}

// oomScoreAdj is the score of a container that asks for so much memory.
func oomScoreAdj(pod *v1.Pod, asked, capacity int64) int64 {
	if p := pod.Spec.Priority; p != nil && *p >= priorityNodeCritical {
		return oomGuaranteed
	}
	switch admission.QOS(pod) {
	case v1.PodQOSGuaranteed:
		return oomGuaranteed
	case v1.PodQOSBestEffort:
		return oomBestEffort
	}
	if capacity <= 0 {
		return oomBestEffort - 1
	}
	// The more of the node's memory it asked for, the later it goes.
	score := oomBestEffort - 1000*(asked+podShare(pod))/capacity
	return min(max(score, oomBurstableMin), oomBestEffort-1)
}

// podShare is a container's part of the memory that the pod asks for beyond what its containers do. Init containers
// that end have one, too, as with the kubelet.
func podShare(pod *v1.Pod) int64 {
	if pod.Spec.Resources == nil || len(pod.Spec.Containers) == 0 {
		return 0
	}
	asked, ok := pod.Spec.Resources.Requests[v1.ResourceMemory]
	if !ok {
		return 0
	}
	containers := pod.DeepCopy()
	containers.Spec.Resources, containers.Spec.Overhead = nil, nil
	sum, count := admission.Requests(containers), len(pod.Spec.Containers)+len(pod.Spec.InitContainers)
	return max(asked.Value()-sum.Memory().Value(), 0) / int64(count)
}

// Resources are the values of a pod's cgroup. Zero values set nothing.
type Resources struct {
	CPUShares uint64
	CPUQuota  int64 // microseconds per period
	CPUPeriod uint64
	Memory    int64 // bytes
	Pids      int64
	// Huge are the limits on huge pages, by page size.
	Huge map[string]uint64
}

// PodResources works out the values of a pod's cgroup: shares from its requests, and limits where every
// container has one.
func PodResources(pod *v1.Pod, opts ResourceOptions, pids int64) Resources {
	requests := podRequests(pod)
	limits, cpuLimited, memoryLimited := podLimits(pod)
	r := Resources{
		CPUShares: Shares(requests.Cpu().MilliValue()), Pids: pids, Huge: hugeLimits(requests, opts.HugePageSizes),
	}
	if admission.QOS(pod) == v1.PodQOSBestEffort {
		r.CPUShares = minShares
		return r
	}
	if cpuLimited && opts.CFSQuota {
		period := opts.period()
		r.CPUQuota, r.CPUPeriod = Quota(limits.Cpu().MilliValue(), period), uint64(period.Microseconds())
	}
	if memoryLimited {
		r.Memory = limits.Memory().Value()
	}
	return r
}

// podRequests adds up the requests of a pod. Where a container has a limit alone, that is its request, too;
// the API server writes that into a pod, and a manifest on disk need not say it.
func podRequests(pod *v1.Pod) v1.ResourceList { return admission.Sum(pod, completeRequests) }

// completeRequests returns the requests, and the limits of what has no request.
func completeRequests(r *v1.ResourceRequirements) v1.ResourceList {
	if len(r.Requests) == 0 {
		return r.Limits
	}
	full := r.Requests
	for name, limit := range r.Limits {
		if _, ok := r.Requests[name]; ok {
			continue
		}
		if len(full) == len(r.Requests) { // the first one that is missing
			full = maps.Clone(r.Requests)
		}
		full[name] = limit
	}
	return full
}

// podLimits adds up the limits of a pod the way admission.Requests adds up requests, and reports which of cpu and
// memory are limited in every container. An init container runs beside the sidecars before it, so it counts as limited
// where they are.
func podLimits(pod *v1.Pod) (limits v1.ResourceList, cpu, memory bool) {
	cpu, memory = true, true
	sidecarCPU, sidecarMemory := false, false
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		ownCPU, ownMemory := positive(c.Resources.Limits, v1.ResourceCPU),
			positive(c.Resources.Limits, v1.ResourceMemory)
		cpu, memory = cpu && (ownCPU || sidecarCPU), memory && (ownMemory || sidecarMemory)
		if restart.IsSidecar(c) {
			sidecarCPU, sidecarMemory = sidecarCPU || ownCPU, sidecarMemory || ownMemory
		}
	}
	for i := range pod.Spec.Containers {
		limits := pod.Spec.Containers[i].Resources.Limits
		cpu, memory = cpu && positive(limits, v1.ResourceCPU), memory && positive(limits, v1.ResourceMemory)
	}
	if r := pod.Spec.Resources; r != nil {
		cpu, memory = cpu || positive(r.Limits, v1.ResourceCPU), memory || positive(r.Limits, v1.ResourceMemory)
	}
	return admission.Limits(pod), cpu, memory
}

func positive(list v1.ResourceList, name v1.ResourceName) bool {
	q, ok := list[name]
	return ok && q.Sign() > 0
}

// burstableShares are the shares of all Burstable pods together.
func burstableShares(pods []*v1.Pod) uint64 {
	var sum resource.Quantity
	for _, pod := range pods {
		if admission.QOS(pod) == v1.PodQOSBurstable {
			requests := podRequests(pod)
			sum.Add(*requests.Cpu())
		}
	}
	return Shares(sum.MilliValue())
}
