package stats

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/cgroups"
	"github.com/edgecore-io/edgecore/edged/storage/csi"
	"github.com/edgecore-io/edgecore/edged/storage/volume"
)

const (
	// fresh is how long a sample of what is cheap to read serves others.
	fresh = time.Second
	// diskFresh is that of the disk, as the kubelet's limits of it; diskShare bounds what measuring it costs.
	diskFresh = 10 * time.Second
	diskShare = 100
	// callTimeout bounds what the runtime is asked, so that a stuck one leaves its part out instead of the whole.
	callTimeout = 10 * time.Second
)

// Runtime is what Stats asks of the runtime.
type Runtime interface {
	ListContainerStats(ctx context.Context, in *runtimeapi.ListContainerStatsRequest,
		opts ...grpc.CallOption) (*runtimeapi.ListContainerStatsResponse, error)
}

// Images is what Stats asks of the image service.
type Images interface {
	ImageFsInfo(ctx context.Context, in *runtimeapi.ImageFsInfoRequest,
		opts ...grpc.CallOption) (*runtimeapi.ImageFsInfoResponse, error)
}

// Options say what is measured, and where.
type Options struct {
	NodeName string
	// System is what the Node says of the machine.
	System v1.NodeSystemInfo
	// RootDir is the agent's folder, which names the node's file system; LogsDir is that of the pods' logs.
	RootDir, LogsDir string
	// Pods are those of the node, with their statuses.
	Pods    func() []*v1.Pod
	Runtime Runtime
	Images  Images
	// PodCgroup finds a pod's cgroup, PodsCgroup the one above all of them; ok is false where there is none. nil is no
	// cgroups.
	PodCgroup  func(pod *v1.Pod) (d cgroups.Dirs, ok bool)
	PodsCgroup func() (d cgroups.Dirs, ok bool)
	// Volumes measures those that are a pod's own, LogDir is the folder of its logs, Files are other files and
	// folders that it writes, such as its hosts file and its termination messages.
	Volumes func(ctx context.Context, pod *v1.Pod) ([]volume.Measured, error)
	LogDir  func(pod *v1.Pod) string
	Files   func(pod *v1.Pod) []string
	// Claims asks CSI drivers how full volumes are; nil does not.
	Claims func(ctx context.Context) []csi.Usage
	// Proc is where the kernel's files are; "" is /proc.
	Proc string
}

// Stats is the Provider over /proc, cgroups, the disk and the runtime.
type Stats struct {
	opts  Options
	began time.Time

	room, node shared[*node] // room has only what readRoom reads
	pods       shared[[]*pod]
	fs         shared[[2]FS]
	rates      rates
	// summaries makes callers compute their summaries one after another: the first may have to wait for a second
	// sample.
	summaries chan struct{}

	disks disks
}

var _ Provider = (*Stats)(nil)

// New makes a Stats. It samples nothing yet.
func New(opts Options) *Stats {
	if opts.Proc == "" {
		opts.Proc = "/proc"
	}
	return &Stats{
		opts:      opts,
		began:     time.Now(),
		rates:     rates{of: map[string]*rate{}},
		summaries: make(chan struct{}, 1),
		disks:     disks{turn: make(chan struct{}, 1), of: map[types.UID]*disk{}},
	}
}

// shared is a sample that those have in common who ask within a moment.
type shared[T any] struct {
	mu   sync.Mutex
	at   time.Time
	last T
	err  error
}

// get returns the sample, a new one where the last is too old. What failed because ctx ended is tried again by the
// next.
func (c *shared[T]) get(ctx context.Context, sample func(ctx context.Context) (T, error)) (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.at.IsZero() && time.Since(c.at) < fresh {
		return c.last, c.err
	}
	got, err := sample(ctx)
	if ctx.Err() == nil {
		c.at, c.last, c.err = time.Now(), got, err
	}
	return got, err
}

// forget drops the sample, so that the next caller takes a new one.
func (c *shared[T]) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = time.Time{}
}

func (s *Stats) sampleNode(ctx context.Context) (*node, error) {
	return s.node.get(ctx, func(context.Context) (*node, error) { return s.readNode() })
}

func (s *Stats) samplePods(ctx context.Context) ([]*pod, error) {
	return s.pods.get(ctx, func(ctx context.Context) ([]*pod, error) { return s.readPods(ctx), nil })
}

// fileSystems are those of images and of containers.
func (s *Stats) fileSystems(ctx context.Context) (images, containers FS, err error) {
	both, err := s.fs.get(ctx, func(ctx context.Context) ([2]FS, error) {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		images, containers, err := s.runtimeFS(ctx)
		return [2]FS{images, containers}, err
	})
	return both[0], both[1], err
}

// Node implements Provider.
func (s *Stats) Node(ctx context.Context) (NodeUsage, error) {
	n, err := s.room.get(ctx, func(context.Context) (*node, error) { return s.readRoom() })
	if err != nil {
		return NodeUsage{}, err
	}
	out := NodeUsage{
		Time: n.at,
		Memory: Memory{
			CapacityBytes:   n.capacity,
			AvailableBytes:  n.available,
			WorkingSetBytes: *n.workingSet,
			SwapTotalBytes:  n.swapTotal,
			SwapFreeBytes:   n.swapFree,
		},
	}
	if out.MaxPIDs = n.maxPIDs; n.processes != nil {
		out.RunningPIDs = *n.processes
	}
	if n.pods.workingSet != nil {
		out.PodsWorkingSet, out.PodsKnown = *n.pods.workingSet, true
	}
	if out.NodeFS, err = readFS(s.opts.RootDir); err != nil {
		return NodeUsage{}, err
	}
	// A runtime that does not answer leaves these two unknown: the node is judged by the rest.
	out.ImageFS, out.ContainerFS, _ = s.fileSystems(ctx)
	return out, nil
}

// PodsMemory implements Provider.
func (s *Stats) PodsMemory(ctx context.Context) ([]PodUsage, error) {
	pods, err := s.samplePods(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]PodUsage, 0, len(pods))
	for _, p := range pods {
		u := PodUsage{UID: p.pod.UID, Namespace: p.pod.Namespace, Name: p.pod.Name, Known: p.workingSet != nil}
		if p.workingSet != nil {
			u.MemoryWorkingSet = *p.workingSet
		}
		if p.processes != nil {
			u.Processes = *p.processes
		}
		for i := range p.containers {
			c := &p.containers[i]
			if c.workingSet == nil {
				continue
			}
			if u.Containers == nil {
				u.Containers = map[string]uint64{}
			}
			u.Containers[c.name] = *c.workingSet
		}
		out = append(out, u)
	}
	return out, nil
}

// Pods implements Provider.
func (s *Stats) Pods(ctx context.Context) ([]PodUsage, error) {
	out, err := s.PodsMemory(ctx)
	if err != nil {
		return nil, err
	}
	disks, err := s.measure(ctx, true)
	for i := range out {
		if d := disks[out[i].UID]; d != nil {
			out[i].DiskKnown, out[i].DiskTime = true, d.at
			out[i].Rootfs, out[i].Logs, out[i].Volumes = d.rootfs(), d.allLogs(), d.local()
		}
	}
	return out, err
}
