// Package nodepressure evicts pods while the node is short of memory, disk or process IDs: it measures the node and its
// pods for package eviction, which decides, and carries out the decision.
package nodepressure

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/edgecore-io/edgecore/edged/containers/pleg"
	"github.com/edgecore-io/edgecore/edged/node/eviction"
	"github.com/edgecore-io/edgecore/edged/node/stats"
	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

const (
	// diskFresh is how old the measurement of a pod's disk may be when a pod is chosen for eviction, and diskWait how
	// long to wait for a newer one.
	diskFresh = 3 * time.Second
	diskWait  = 20 * time.Second
)

// Stats are the measurements; see package stats.
type Stats interface {
	Node(ctx context.Context) (stats.NodeUsage, error)
	Pods(ctx context.Context) ([]stats.PodUsage, error)
	PodsMemory(ctx context.Context) ([]stats.PodUsage, error)
	Summary(ctx context.Context, onlyCPUAndMemory bool) (*statsapi.Summary, error)
}

// Meter measures. Its methods may be called from any goroutine.
type Meter struct {
	Stats    Stats
	PLEG     pleg.Interface
	Desired  *desired.Pods
	Statuses *status.Manager
	// PodsMemory is how many bytes all pods together may use; 0 is no limit.
	PodsMemory int64
}

// Node measures what a node can be short of.
func (m *Meter) Node(ctx context.Context) (eviction.Observations, error) {
	use, err := m.Stats.Node(ctx)
	if err != nil {
		return nil, err
	}
	return observations(use, m.PodsMemory), nil
}

// observations returns the observations of a node whose pods together may use podsMemory bytes; 0 is no limit. It is
// pure.
func observations(use stats.NodeUsage, podsMemory int64) eviction.Observations {
	seen := eviction.Observations{}
	if mem := use.Memory; mem.CapacityBytes > 0 {
		seen[eviction.Memory] = eviction.Observation{
			Available: int64(mem.AvailableBytes),
			Capacity:  int64(mem.CapacityBytes),
		}
	}
	if use.PodsKnown && podsMemory > 0 {
		seen[eviction.AllocatableMemory] = eviction.Observation{
			Available: podsMemory - int64(use.PodsWorkingSet),
			Capacity:  podsMemory,
		}
	}
	if use.MaxPIDs > 0 {
		seen[eviction.PIDs] = eviction.Observation{
			Available: int64(use.MaxPIDs) - int64(use.RunningPIDs),
			Capacity:  int64(use.MaxPIDs),
		}
	}
	for _, fs := range []struct {
		stats.FS
		bytes, inodes eviction.Signal
	}{
		{use.NodeFS, eviction.NodeFS, eviction.NodeFSInodes}, {use.ImageFS, eviction.ImageFS, eviction.ImageFSInodes},
		{use.ContainerFS, eviction.ContainerFS, eviction.ContainerFSInodes},
	} {
		if fs.Known && fs.CapacityBytes > 0 {
			seen[fs.bytes] = eviction.Observation{
				Available: int64(fs.AvailableBytes), Capacity: int64(fs.CapacityBytes),
			}
		}
		if fs.Known && fs.Inodes > 0 {
			seen[fs.inodes] = eviction.Observation{Available: int64(fs.InodesFree), Capacity: int64(fs.Inodes)}
		}
	}
	return seen
}

// Layout returns which file systems of a node are the same. It is pure.
func Layout(use stats.NodeUsage) eviction.Layout {
	images := use.ImageFS.Known && use.ImageFS.Device != use.NodeFS.Device
	layers := images && (!use.ContainerFS.Known || use.ContainerFS.Device == use.ImageFS.Device)
	return eviction.Layout{Images: images, Layers: layers}
}

// Pods measures the pods that may be evicted for a signal.
func (m *Meter) Pods(ctx context.Context, s eviction.Signal) ([]eviction.PodUsage, eviction.Layout, error) {
	if err := m.PLEG.Healthy(); err != nil {
		return nil, eviction.Layout{}, fmt.Errorf("the runtime cannot stop pods: %w", err)
	}
	node, err := m.Stats.Node(ctx)
	if err != nil {
		return nil, eviction.Layout{}, err
	}
	disk := s.Condition() == v1.NodeDiskPressure
	use, err := m.measure(ctx, disk)
	if err != nil {
		return nil, eviction.Layout{}, err
	}
	containers := map[types.UID][]eviction.ContainerUsage{}
	if disk {
		summary, err := m.Stats.Summary(ctx, false)
		if err != nil {
			return nil, eviction.Layout{}, err
		}
		for i := range summary.Pods {
			containers[types.UID(summary.Pods[i].PodRef.UID)] = containerUsage(&summary.Pods[i])
		}
	}
	measured := map[types.UID]stats.PodUsage{}
	for _, u := range use {
		measured[u.UID] = u
		if !disk { // memory does not wait for a summary: measuring the disk for it may take long
			containers[u.UID] = containerMemory(u.Containers)
		}
	}
	var pods []eviction.PodUsage
	for _, p := range m.Desired.All() {
		u, ok := measured[p.Pod.UID]
		if !ok || !p.Admitted || p.Removed || p.Stopped != nil || p.Pod.DeletionTimestamp != nil ||
			status.Terminal(m.Statuses.Phase(p.Pod.UID)) {
			continue
		}
		pods = append(pods, eviction.PodUsage{
			Pod:        p.Pod,
			Memory:     int64(u.MemoryWorkingSet),
			Unmeasured: !u.Known && m.PLEG.Get(p.Pod.UID).ContainersAlive(),
			Processes:  int64(u.Processes),
			RootFS:     diskUse(u.Rootfs),
			Logs:       diskUse(u.Logs),
			Volumes:    diskUse(u.Volumes),
			Containers: containers[p.Pod.UID],
		})
	}
	return pods, Layout(node), nil
}

// measure measures the pods. If disk is true, it waits for measurements of the disk that are newer than diskFresh: the
// pod that fills the disk may have begun seconds ago.
func (m *Meter) measure(ctx context.Context, disk bool) ([]stats.PodUsage, error) {
	if !disk {
		return m.Stats.PodsMemory(ctx)
	}
	began := time.Now()
	for {
		pods, err := m.Stats.Pods(ctx)
		if err != nil || time.Since(began) > diskWait {
			return pods, err
		}
		old := slices.ContainsFunc(pods, func(p stats.PodUsage) bool {
			return p.DiskKnown && p.DiskTime.Before(began.Add(-diskFresh))
		})
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

// containerMemory returns the memory that containers use. It is pure.
func containerMemory(workingSets map[string]uint64) []eviction.ContainerUsage {
	var list []eviction.ContainerUsage
	for _, name := range slices.Sorted(maps.Keys(workingSets)) {
		list = append(list, eviction.ContainerUsage{Name: name, Memory: int64(workingSets[name])})
	}
	return list
}

// containerUsage returns the memory and the disk that the containers of a pod use. It is pure.
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
