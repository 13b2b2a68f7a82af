// Package stats measures how much CPU time, memory, disk space and how many process IDs the node and its pods use.
//
// It samples only on request: an idle node measures nothing. What is cheap to read, such as a file of /proc or of a
// cgroup, is taken again for an answer unless another one took it within the last second, so that concurrent requests
// share one sample. The disk, whose folders have to be walked, is measured at most every 10 seconds, and less often
// where measuring takes long: it rests for a hundred times of what it took.
//
// The CPU, memory and processes of pods and containers come from the files of their cgroups: they are what the runtime
// would read, without a call through each of its shims. A container that has no cgroup on the host, such as one in a
// virtual machine, has the figures that the runtime gives; so have root file systems, which only the runtime can
// measure.
package stats

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Provider is what others ask. Its methods may be called from any goroutine; what they return is the caller's.
type Provider interface {
	// Summary is what /stats/summary answers. With onlyCPUAndMemory the disk is not measured.
	Summary(ctx context.Context, onlyCPUAndMemory bool) (*statsapi.Summary, error)
	// Node is what eviction observes of the node. What could not be learned is zero, with Known false; the error is of
	// what the node cannot be judged without.
	Node(ctx context.Context) (NodeUsage, error)
	// Pods is what each pod of the node uses, with a disk measured within the last 10 seconds or now. A pod that could
	// not be measured is there, with Known or DiskKnown false; the error is of the last one.
	Pods(ctx context.Context) ([]PodUsage, error)
	// PodsMemory is Pods without the disk, which costs little: memory and processes.
	PodsMemory(ctx context.Context) ([]PodUsage, error)
}

// NodeUsage is what the node has and uses.
type NodeUsage struct {
	// Time is when it was sampled.
	Time   time.Time
	Memory Memory
	// PodsWorkingSet is that of all pods together, in bytes, where there is a cgroup above them (PodsKnown).
	PodsWorkingSet uint64
	PodsKnown      bool
	// MaxPIDs is how many processes and threads there may be, RunningPIDs how many there are.
	MaxPIDs, RunningPIDs uint64
	// NodeFS is the file system of the agent's folder: volumes and logs. ImageFS is the one of images, ContainerFS the
	// one that containers write to; both are not Known while the runtime does not answer. Compare Device to see which
	// are one.
	NodeFS, ImageFS, ContainerFS FS
}

// Memory is in bytes. AvailableBytes is CapacityBytes without WorkingSetBytes: what is used without the files that the
// kernel can drop at once.
type Memory struct {
	CapacityBytes, AvailableBytes, WorkingSetBytes uint64
	SwapTotalBytes, SwapFreeBytes                  uint64
}

// FS is a file system.
type FS struct {
	Known bool
	// Path is a folder in it, Device is its number as stat(2) has it.
	Path   string
	Device uint64
	// AvailableBytes is what an ordinary user may still write. Inodes are 0 in file systems that do not count them,
	// such as btrfs.
	CapacityBytes, AvailableBytes uint64
	Inodes, InodesFree            uint64
	// UsedBytes and UsedInodes are what images (ImageFS) or containers (ContainerFS) take of it, as the runtime says; 0
	// where it does not say.
	UsedBytes, UsedInodes uint64
}

// PodUsage is what a pod uses.
type PodUsage struct {
	UID             types.UID
	Namespace, Name string
	// Known: MemoryWorkingSet (bytes) and Processes (threads among them) were measured.
	Known            bool
	MemoryWorkingSet uint64
	Processes        uint64
	// Containers is the known working set, in bytes, of each container.
	Containers map[string]uint64
	// DiskKnown: what follows was measured; DiskTime is when. Rootfs is what its containers wrote into their root file
	// systems (on ContainerFS), Logs are those of its containers, Volumes what is its own and on the disk of the node:
	// emptyDirs and configmaps, not claims nor host paths (both on NodeFS).
	DiskKnown             bool
	DiskTime              time.Time
	Rootfs, Logs, Volumes Disk
}

// Disk is what something takes of a disk.
type Disk struct{ Bytes, Inodes uint64 }

// Add returns the sum.
func (d Disk) Add(o Disk) Disk { return Disk{d.Bytes + o.Bytes, d.Inodes + o.Inodes} }

// Total is all that a pod takes of the disk.
func (p *PodUsage) Total() Disk { return p.Rootfs.Add(p.Logs).Add(p.Volumes) }
