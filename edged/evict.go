package edged

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/edgecore-io/edgecore/edged/eviction"
	"github.com/edgecore-io/edgecore/edged/stats"
	"github.com/edgecore-io/edgecore/edged/status"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// This file is how the node is kept from running out of memory, disk and processes: see package eviction.

const (
	// diskFresh is how old a measurement of what pods have on the disk may be when one of them is chosen to end for it, and
	// diskWait is how long a newer one is waited for.
	diskFresh = 3 * time.Second
	diskWait  = 20 * time.Second
)

// EvictionOptions say when pods end for want of resources.
type EvictionOptions struct {
	eviction.Config
	// KernelMemcg has thresholds on the use of memory cgroups (cgroup v1) though the kernel has PSI.
	KernelMemcg bool
}

// newEvictions makes the part that ends pods for want of resources.
func (e *Edged) newEvictions() *eviction.Manager {
	return eviction.New(eviction.Options{
		Config: e.opts.Eviction.Config,
		Node:   e.observeNode, Pods: e.podsToEvict, Evict: e.evict, FreeDisk: e.freeDisk, Changed: e.pressureChanged,
		Acting: func(name v1.ResourceName) {
			e.recorder.NodeEventf(v1.EventTypeWarning, "EvictionThresholdMet", "Attempting to reclaim %s", name)
		},
		Memory: func(left map[eviction.Signal]int64) { e.memoryNews.Headroom(left) },
	})
}

// newMemoryNews makes the part that has the kernel say when memory gets short.
func (e *Edged) newMemoryNews() *eviction.Notifier {
	o := eviction.NotifierOptions{Pressure: []string{eviction.SystemPressure}, Poke: func() { e.evictions.Poke() }}
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

// observeNode reads how much there is of what evictions are for.
func (e *Edged) observeNode(ctx context.Context) (eviction.Observations, error) {
	use, err := e.stats.Node(ctx)
	if err != nil {
		return nil, err
	}
	return observations(use, e.opts.Cgroups.Pods.Memory), nil
}

// observations are what was seen of a node, whose pods together may use so much memory; 0 is no limit. It is pure.
func observations(use stats.NodeUsage, podsMemory int64) eviction.Observations {
	seen := eviction.Observations{}
	if m := use.Memory; m.CapacityBytes > 0 {
		seen[eviction.Memory] = eviction.Observation{Available: int64(m.AvailableBytes), Capacity: int64(m.CapacityBytes)}
	}
	if use.PodsKnown && podsMemory > 0 {
		seen[eviction.AllocatableMemory] = eviction.Observation{Available: podsMemory - int64(use.PodsWorkingSet), Capacity: podsMemory}
	}
	if use.MaxPIDs > 0 {
		seen[eviction.PIDs] = eviction.Observation{Available: int64(use.MaxPIDs) - int64(use.RunningPIDs), Capacity: int64(use.MaxPIDs)}
	}
	for _, fs := range []struct {
		stats.FS
		bytes, inodes eviction.Signal
	}{
		{use.NodeFS, eviction.NodeFS, eviction.NodeFSInodes}, {use.ImageFS, eviction.ImageFS, eviction.ImageFSInodes},
		{use.ContainerFS, eviction.ContainerFS, eviction.ContainerFSInodes},
	} {
		if fs.Known && fs.CapacityBytes > 0 {
			seen[fs.bytes] = eviction.Observation{Available: int64(fs.AvailableBytes), Capacity: int64(fs.CapacityBytes)}
		}
		if fs.Known && fs.Inodes > 0 {
			seen[fs.inodes] = eviction.Observation{Available: int64(fs.InodesFree), Capacity: int64(fs.Inodes)}
		}
	}
	return seen
}

// layoutOf says which file systems of a node are the same. It is pure.
func layoutOf(use stats.NodeUsage) eviction.Layout {
	images := use.ImageFS.Known && use.ImageFS.Device != use.NodeFS.Device
	return eviction.Layout{Images: images, Layers: images && (!use.ContainerFS.Known || use.ContainerFS.Device == use.ImageFS.Device)}
}

// podsToEvict measures the pods that may end for want of what a signal is about.
func (e *Edged) podsToEvict(ctx context.Context, s eviction.Signal) ([]eviction.PodUsage, eviction.Layout, error) {
	if err := e.pleg.Healthy(); err != nil {
		return nil, eviction.Layout{}, fmt.Errorf("the runtime could end no pod: %w", err)
	}
	node, err := e.stats.Node(ctx)
	if err != nil {
		return nil, eviction.Layout{}, err
	}
	disk := s.Condition() == v1.NodeDiskPressure
	use, err := e.measurePods(ctx, disk)
	if err != nil {
		return nil, eviction.Layout{}, err
	}
	containers := map[types.UID][]eviction.ContainerUsage{}
	if disk {
		summary, err := e.stats.Summary(ctx, false)
		if err != nil {
			return nil, eviction.Layout{}, err
		}
		for i := range summary.Pods {
			containers[types.UID(summary.Pods[i].PodRef.UID)] = containerUsage(&summary.Pods[i])
		}
	}
	known := map[types.UID]stats.PodUsage{}
	for _, u := range use {
		known[u.UID] = u
		if !disk { // memory waits for no summary, whose disk may take long to measure
			containers[u.UID] = containerMemory(u.Containers)
		}
	}
	var pods []eviction.PodUsage
	for _, w := range e.desired.All() {
		u, measured := known[w.Pod.UID]
		if !measured || !w.Admitted || w.Removed || w.Stopped != nil || w.Pod.DeletionTimestamp != nil || status.Terminal(e.statuses.Phase(w.Pod.UID)) {
			continue
		}
		pods = append(pods, eviction.PodUsage{
			Pod:        w.Pod,
			Memory:     int64(u.MemoryWorkingSet),
			Unmeasured: !u.Known && e.pleg.Get(w.Pod.UID).ContainersAlive(),
			Processes:  int64(u.Processes),
			RootFS:     diskUse(u.Rootfs),
			Logs:       diskUse(u.Logs),
			Volumes:    diskUse(u.Volumes),
			Containers: containers[w.Pod.UID],
		})
	}
	return pods, layoutOf(node), nil
}

// measurePods measures the pods, and of their disk what they have there now: who has filled it may have done so in the
// last seconds.
func (e *Edged) measurePods(ctx context.Context, disk bool) ([]stats.PodUsage, error) {
	if !disk {
		return e.stats.PodsMemory(ctx)
	}
	began := time.Now()
	for {
		pods, err := e.stats.Pods(ctx)
		if err != nil || time.Since(began) > diskWait {
			return pods, err
		}
		old := false
		for i := range pods {
			old = old || pods[i].DiskKnown && pods[i].DiskTime.Before(began.Add(-diskFresh))
		}
		if !old {
			return pods, nil
		}
		if !retry.Sleep(ctx, time.Second) {
			return nil, ctx.Err()
		}
	}
}

func diskUse(d stats.Disk) eviction.DiskUse {
	return eviction.DiskUse{Bytes: int64(d.Bytes), Inodes: int64(d.Inodes)}
}

// containerMemory is what containers take of the memory. It is pure.
func containerMemory(workingSets map[string]uint64) []eviction.ContainerUsage {
	var list []eviction.ContainerUsage
	for _, name := range slices.Sorted(maps.Keys(workingSets)) {
		list = append(list, eviction.ContainerUsage{Name: name, Memory: int64(workingSets[name])})
	}
	return list
}

func containerUsage(p *statsapi.PodStats) []eviction.ContainerUsage {
	var list []eviction.ContainerUsage
	for i := range p.Containers {
		c := &p.Containers[i]
		u := eviction.ContainerUsage{Name: c.Name}
		if c.Memory != nil && c.Memory.WorkingSetBytes != nil {
			u.Memory = int64(*c.Memory.WorkingSetBytes)
		}
		for _, fs := range []*statsapi.FsStats{c.Rootfs, c.Logs} {
			if fs != nil && fs.UsedBytes != nil {
				u.Disk += int64(*fs.UsedBytes)
			}
		}
		list = append(list, u)
	}
	return list
}

// evict has a pod end for want of resources.
func (e *Edged) evict(pod *v1.Pod, message string, annotations map[string]string, grace int64) <-chan struct{} {
	e.stopPod(pod, status.Stopped{Reason: eviction.Reason, Message: message, Grace: &grace, Condition: &v1.PodCondition{
		Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet, Message: message,
	}}, annotations)
	return e.waitEnded(pod.UID)
}

// evicted says why a pod ends that was to end for want of resources before the agent started: its condition has it. nil: it
// was not.
func evicted(before v1.PodStatus) *status.Stopped {
	i := slices.IndexFunc(before.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue && c.Reason == v1.PodReasonTerminationByKubelet && eviction.Was(c.Message)
	})
	if i < 0 {
		return nil
	}
	return &status.Stopped{Reason: eviction.Reason, Message: before.Conditions[i].Message, Condition: &before.Conditions[i]}
}

// freeDisk removes what nobody needs from the file system of a signal, until there is enough.
func (e *Edged) freeDisk(ctx context.Context, s eviction.Signal, enough func(context.Context) bool) error {
	use, err := e.stats.Node(ctx)
	if err != nil {
		return err
	}
	if err := e.garbage.FreeContainers(ctx); err != nil {
		return fmt.Errorf("dead containers: %w", err)
	}
	if layoutOf(use).Images && !strings.HasPrefix(string(s), "imagefs.") || enough(ctx) {
		return nil
	}
	if err := e.garbage.FreeImages(ctx, enough); err != nil {
		return fmt.Errorf("images: %w", err)
	}
	return nil
}

// pressureChanged is told of the conditions of the node.
func (e *Edged) pressureChanged(conditions []v1.NodeConditionType, met []eviction.Threshold, seen eviction.Observations) {
	held := map[v1.NodeConditionType]bool{}
	for _, kind := range conditions {
		held[kind] = true
	}
	for kind, code := range map[v1.NodeConditionType]health.Code{
		v1.NodeMemoryPressure: health.MemoryPressure, v1.NodeDiskPressure: health.DiskPressure, v1.NodePIDPressure: health.PIDPressure,
	} {
		if !held[kind] {
			e.health.Clear(code, "")
			continue
		}
		detail := ""
		for _, t := range met {
			if t.Signal.Condition() == kind {
				detail = t.Describe(seen)
				break
			}
		}
		e.health.Set(code, "", detail)
	}
	if e.node != nil {
		e.node.Look()
	}
	e.capacityFreed.Notify()
}
