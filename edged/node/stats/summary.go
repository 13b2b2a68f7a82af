package stats

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/storage/csi"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// diskPatience is how long a summary waits for the disk to be measured. What takes longer keeps its last figures.
const diskPatience = 15 * time.Second

// inputs are all that a summary is made of.
type inputs struct {
	nodeName string
	node     *node
	pods     []*pod
	// full: what follows was measured, too.
	full               bool
	root, images, ctrs FS
	disks              map[types.UID]*disk
	claims             []csi.Usage
	// volumeFS is the file system of each volume's folder.
	volumeFS map[string]FS
}

// Summary implements Provider.
func (s *Stats) Summary(ctx context.Context, onlyCPUAndMemory bool) (*statsapi.Summary, error) {
	select {
	case s.summaries <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-s.summaries }()
	in := inputs{nodeName: s.opts.NodeName}
	if err := s.sampleTwice(ctx, &in); err != nil {
		return nil, err
	}
	if onlyCPUAndMemory {
		return summary(&in), nil
	}
	in.full = true
	var err error
	if in.root, err = readFS(s.opts.RootDir); err != nil {
		return nil, err
	}
	if in.images, in.ctrs, err = s.fileSystems(ctx); err != nil {
		klog.V(2).InfoS("Summary without the runtime's file systems", "err", err)
	}
	patience, cancel := context.WithTimeout(ctx, diskPatience)
	defer cancel()
	if in.disks, err = s.measure(patience, false); err != nil {
		klog.V(2).InfoS("Summary with cached disk usage", "err", err)
	}
	in.volumeFS = map[string]FS{}
	for _, d := range in.disks {
		for _, v := range d.volumes {
			if fs, err := readFS(v.Dir); err == nil {
				in.volumeFS[v.Dir] = fs
			}
		}
	}
	if s.opts.Claims != nil {
		in.claims = s.opts.Claims(patience)
	}
	return summary(&in), ctx.Err()
}

// sampleTwice samples the CPU and memory, and a moment later again where nothing was sampled lately: a usage is that
// between two samples.
func (s *Stats) sampleTwice(ctx context.Context, in *inputs) (err error) {
	for again := false; ; again = true {
		if in.node, err = s.sampleNode(ctx); err != nil {
			return err
		}
		if in.pods, err = s.samplePods(ctx); err != nil {
			return err
		}
		if again || rated(in) {
			return nil
		}
		if !retry.Sleep(ctx, moment) {
			return ctx.Err()
		}
		s.node.forget()
		s.pods.forget()
	}
}

// rated reports whether all have a CPU usage that were sampled.
func rated(in *inputs) bool {
	without := func(u *usage) bool { return u.cpu != nil && u.nano == nil }
	if without(&in.node.usage) {
		return false
	}
	for _, p := range in.pods {
		if without(&p.usage) {
			return false
		}
		for i := range p.containers {
			if without(&p.containers[i].usage) {
				return false
			}
		}
	}
	return true
}

// summary puts the answer together.
func summary(in *inputs) *statsapi.Summary {
	out := &statsapi.Summary{Node: nodeStats(in), Pods: make([]statsapi.PodStats, 0, len(in.pods))}
	for _, p := range in.pods {
		if len(p.containers) == 0 && !p.known() {
			continue // nothing of it runs
		}
		out.Pods = append(out.Pods, podStats(in, p))
	}
	return out
}

func nodeStats(in *inputs) statsapi.NodeStats {
	n := in.node
	out := statsapi.NodeStats{
		NodeName:  in.nodeName,
		StartTime: metav1.NewTime(n.booted),
		CPU:       cpuStats(&n.usage),
		Memory:    memoryStats(&n.usage),
		Swap:      swapStats(&n.usage),
	}
	out.Memory.AvailableBytes = ptr.To(n.available)
	out.Swap.SwapAvailableBytes = ptr.To(n.swapFree)
	out.SystemContainers = systemContainers(n)
	if !in.full {
		return out
	}
	if n.maxPIDs > 0 {
		out.Rlimit = &statsapi.RlimitStats{Time: metav1.NewTime(n.at), MaxPID: ptr.To(int64(n.maxPIDs))}
		if n.processes != nil {
			out.Rlimit.NumOfRunningProcesses = ptr.To(int64(*n.processes))
		}
	}
	out.IO = ioStats(&n.usage)
	out.Network = networkStats(n.at, n.links, n.defaultLink)
	out.Fs = fsStats(n.at, &in.root)
	out.Fs.UsedBytes, out.Fs.InodesUsed =
		ptr.To(in.root.CapacityBytes-min(in.root.AvailableBytes, in.root.CapacityBytes)),
		ptr.To(in.root.Inodes-min(in.root.InodesFree, in.root.Inodes))
	if in.images.Known {
		out.Runtime = &statsapi.RuntimeStats{ImageFs: usedFS(n.at, &in.images), ContainerFs: usedFS(n.at, &in.ctrs)}
	}
	return out
}

// systemContainers are the pods together, and this agent.
func systemContainers(n *node) []statsapi.ContainerStats {
	var out []statsapi.ContainerStats
	for _, c := range []struct {
		name  string
		since time.Time
		u     *usage
	}{{statsapi.SystemContainerKubelet, n.began, &n.agent}, {statsapi.SystemContainerPods, n.booted, &n.pods}} {
		if c.u.known() {
			one := statsapi.ContainerStats{
				Name:      c.name,
				StartTime: metav1.NewTime(c.since),
				CPU:       cpuStats(c.u),
				Memory:    memoryStats(c.u),
			}
			if c.u.swap != nil {
				one.Swap = swapStats(c.u)
			}
			out = append(out, one)
		}
	}
	return out
}

func podStats(in *inputs, p *pod) statsapi.PodStats {
	out := statsapi.PodStats{
		PodRef:     statsapi.PodReference{Name: p.pod.Name, Namespace: p.pod.Namespace, UID: string(p.pod.UID)},
		CPU:        cpuStats(&p.usage),
		Memory:     memoryStats(&p.usage),
		Swap:       swapStats(&p.usage),
		Containers: make([]statsapi.ContainerStats, 0, len(p.containers)),
	}
	if p.pod.Status.StartTime != nil {
		out.StartTime = *p.pod.Status.StartTime
	}
	d := in.disks[p.pod.UID]
	for i := range p.containers {
		c := &p.containers[i]
		one := statsapi.ContainerStats{
			Name:      c.name,
			StartTime: metav1.NewTime(c.started),
			CPU:       cpuStats(&c.usage),
			Memory:    memoryStats(&c.usage),
			Swap:      swapStats(&c.usage),
		}
		if in.full {
			one.IO = ioStats(&c.usage)
		}
		if in.full && d != nil {
			one.Rootfs, one.Logs = takes(d.at, &in.ctrs, d.roots[c.name]), takes(d.at, &in.root, d.logs[c.name])
		}
		out.Containers = append(out.Containers, one)
	}
	if !in.full {
		return out
	}
	out.IO = ioStats(&p.usage)
	if p.processes != nil {
		out.ProcessStats = &statsapi.ProcessStats{ProcessCount: p.processes}
	}
	if len(p.links) > 0 {
		out.Network = networkStats(p.at, p.links, "eth0")
	}
	if d != nil {
		out.EphemeralStorage = takes(d.at, &in.root, d.rootfs().Add(d.allLogs()).Add(d.local()))
	}
	out.VolumeStats = volumeStats(in, p, d)
	return out
}

// volumeStats are the volumes of a pod: its own, and those that their driver measures.
func volumeStats(in *inputs, p *pod, d *disk) []statsapi.VolumeStats {
	var out []statsapi.VolumeStats
	if d != nil {
		for _, v := range d.volumes {
			fs := in.volumeFS[v.Dir]
			out = append(out, statsapi.VolumeStats{Name: v.Name, FsStats: *takes(d.at, &fs, sizeOf(v.Size))})
		}
	}
	for i := range in.claims {
		u := &in.claims[i]
		if u.PodUID != p.pod.UID {
			continue
		}
		positive := func(n int64) *uint64 { return ptr.To(uint64(max(n, 0))) }
		one := statsapi.VolumeStats{Name: u.Name, FsStats: statsapi.FsStats{
			Time:           metav1.NewTime(p.at),
			CapacityBytes:  positive(u.Capacity),
			AvailableBytes: positive(u.Available),
			UsedBytes:      positive(u.Used),
			Inodes:         positive(u.Inodes),
			InodesFree:     positive(u.InodesFree),
			InodesUsed:     positive(u.InodesUsed),
		}}
		if u.Claim != "" {
			one.PVCRef = &statsapi.PVCReference{Name: u.Claim, Namespace: u.Pod.Namespace}
			one.Name = nameOf(p, u)
		}
		out = append(out, one)
	}
	return out
}

// nameOf is what a pod calls the volume of a claim.
func nameOf(p *pod, u *csi.Usage) string {
	for i := range p.pod.Spec.Volumes {
		vol := &p.pod.Spec.Volumes[i]
		if vol.PersistentVolumeClaim != nil && vol.PersistentVolumeClaim.ClaimName == u.Claim ||
			vol.Ephemeral != nil && p.pod.Name+"-"+vol.Name == u.Claim {
			return vol.Name
		}
	}
	return u.Name
}
