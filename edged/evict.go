package edged

import (
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/eviction"
	"github.com/edgecore-io/edgecore/edged/nodepressure"
	"github.com/edgecore-io/edgecore/edged/status"
	"github.com/edgecore-io/edgecore/edged/storagelimit"
)

// This file is how the node is kept from running out of memory, disk and processes: see package eviction.

// EvictionOptions say when pods end for want of resources.
type EvictionOptions struct {
	eviction.Config
	// KernelMemcg has thresholds on the use of memory cgroups (cgroup v1) though the kernel has PSI.
	KernelMemcg bool
}

// newEvictions makes the part that ends pods for want of resources.
func (e *Edged) newEvictions() *eviction.Manager {
	meter := &nodepressure.Meter{
		Stats:      e.stats,
		PLEG:       e.pleg,
		Desired:    e.desired,
		Phase:      e.statuses.Phase,
		PodsMemory: e.opts.Cgroups.Pods.Memory,
	}
	return eviction.New(eviction.Options{
		Config: e.opts.Eviction.Config,
		Node:   meter.Node,
		Pods:   meter.Pods,
		Evict: func(pod *v1.Pod, message string, annotations map[string]string, grace int64) <-chan struct{} {
			return nodepressure.Evict(e.stopper, pod, message, annotations, grace)
		},
		FreeDisk: (&nodepressure.Reclaimer{Stats: e.stats, Garbage: e.garbage}).Free,
		Changed:  e.pressureChanged,
		Acting: func(name v1.ResourceName) {
			e.recorder.NodeEventf(v1.EventTypeWarning, "EvictionThresholdMet", "Attempting to reclaim %s", name)
		},
		Memory: func(left map[eviction.Signal]int64) { e.memoryPressure.Headroom(left) },
	})
}

// newMemoryPressureNotifier makes the part that has the kernel say when memory gets short.
func (e *Edged) newMemoryPressureNotifier() *eviction.Notifier {
	o := eviction.NotifierOptions{Pressure: []string{eviction.SystemPressure}, Notify: func() { e.evictions.Notify() }}
	if v2 := e.cgroups.PodsPressure(); v2 != "" {
		o.Pressure = append(o.Pressure, v2)
	}
	// Of the memory of all pods together PSI says nothing on cgroup v1.
	if dir := e.cgroups.PodsMemcg(); dir != "" {
		o.Memcg = map[eviction.Signal]string{eviction.AllocatableMemory: dir}
		if e.opts.Eviction.KernelMemcg {
			o.Memcg[eviction.Memory] = e.cgroups.NodeMemcg()
		}
	}
	return eviction.NewNotifier(o)
}

// pressureChanged is told of the conditions of the node.
func (e *Edged) pressureChanged(
	conditions []v1.NodeConditionType, met []eviction.Threshold, seen eviction.Observations,
) {
	nodepressure.Show(e.health, conditions, met, seen)
	if e.node != nil {
		e.node.Look()
	}
	e.capacityFreed.Notify()
}

// newStorageLimits makes the part that ends pods that use more of the disk than they may.
func (e *Edged) newStorageLimits() *storagelimit.Manager {
	return storagelimit.New(storagelimit.Options{
		Desired: e.desired,
		Phase:   e.statuses.Phase,
		Node:    e.stats.Node,
		Volumes: e.volumes.Usage,
		Runtime: e.client,
		PodDir:  e.podDir,
		LogDir:  e.runtime.LogDir,
		Stop:    func(pod *v1.Pod, why status.Stopped) { e.stopper.Stop(pod, why, nil) },
		Evicted: e.evictions.Count,
	})
}
