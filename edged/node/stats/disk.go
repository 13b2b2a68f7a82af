package stats

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers/logdir"
	"github.com/edgecore-io/edgecore/edged/storage/volume"
)

// disks is what pods take of the disk. Pods are measured one after another: the disk is what it costs.
type disks struct {
	// turn is held by who measures.
	turn chan struct{}
	mu   sync.Mutex
	of   map[types.UID]*disk
}

// disk is what one pod takes of the disk; it is not changed once it was measured.
type disk struct {
	at time.Time
	// took is how long measuring it did.
	took time.Duration
	// roots are what containers wrote into their root file systems, logs theirs, by name.
	roots, logs map[string]Disk
	volumes     []volume.Measured
	other       Disk
}

func sizeOf(s volume.Size) Disk {
	return Disk{Bytes: uint64(max(s.Bytes, 0)), Inodes: uint64(max(s.Inodes, 0))}
}

func sum(parts map[string]Disk) (all Disk) {
	for _, d := range parts {
		all = all.Add(d)
	}
	return all
}

func (d *disk) rootfs() Disk  { return sum(d.roots) }
func (d *disk) allLogs() Disk { return sum(d.logs) }

// validFor is how long the figures serve.
func (d *disk) validFor(urgent bool) time.Duration {
	if urgent {
		return diskFresh
	}
	return max(diskFresh, diskShare*d.took)
}

// local is what its volumes take that are on the disk, and its hosts file and termination messages.
func (d *disk) local() Disk {
	all := d.other
	for _, v := range d.volumes {
		if v.Local {
			all = all.Add(sizeOf(v.Size))
		}
	}
	return all
}

// measure measures the pods whose figures are too old, and returns the figures of all. Pods that could not be measured
// before ctx ended, or for which the runtime has no figures, keep their last figures, with the error. A folder that
// cannot be read costs its pod the figures of that folder alone: pods are compared by what is known of them. What is
// urgent does not spare the disk.
func (s *Stats) measure(ctx context.Context, urgent bool) (map[types.UID]*disk, error) {
	pods := slices.DeleteFunc(s.opts.Pods(), ended)
	select {
	case s.disks.turn <- struct{}{}:
	case <-ctx.Done():
		return s.disks.snapshot(), ctx.Err()
	}
	defer func() { <-s.disks.turn }()
	s.disks.forgetExcept(pods)
	due := s.disks.dueForMeasuring(pods, time.Now(), urgent)
	if len(due) == 0 {
		return s.disks.snapshot(), nil
	}
	before := s.disks.snapshot()
	layers, silent := s.layers(ctx)
	for _, p := range due {
		began := time.Now()
		d, err := s.measurePod(ctx, p)
		if ctx.Err() != nil {
			return s.disks.snapshot(), ctx.Err()
		}
		if err != nil {
			klog.V(2).InfoS("Part of a pod's disk use not measured", "pod", klog.KObj(p), "err", err)
		}
		for _, name := range containerNames(p) {
			d.roots[name] = layers[layer{p.UID, name}]
		}
		if have := before[p.UID]; silent != nil && have != nil {
			d.roots = have.roots // the runtime says nothing: what it said last
		}
		d.at, d.took = time.Now(), time.Since(began)
		s.disks.set(p.UID, d)
	}
	return s.disks.snapshot(), silent
}

// measurePod walks the folders of a pod. The error says which could not be read; the figures are those of the others.
func (s *Stats) measurePod(ctx context.Context, p *v1.Pod) (*disk, error) {
	d := &disk{roots: map[string]Disk{}, logs: map[string]Disk{}}
	var failed []error
	note := func(what string, err error) {
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", what, err))
		}
	}
	var err error
	d.volumes, err = s.opts.Volumes(ctx, p)
	note("volumes", err)
	for _, name := range containerNames(p) {
		size, err := logdir.Measure(ctx, filepath.Join(s.opts.LogDir(p), name))
		note("logs of container "+name, err)
		d.logs[name] = sizeOf(size)
	}
	for _, path := range s.opts.Files(p) {
		size, err := volume.Measure(ctx, path)
		note(filepath.Base(path), err)
		d.other = d.other.Add(sizeOf(size))
	}
	return d, errors.Join(failed...)
}

// containerNames are those of all containers of a pod.
func containerNames(p *v1.Pod) []string {
	var names []string
	for i := range p.Spec.InitContainers {
		names = append(names, p.Spec.InitContainers[i].Name)
	}
	for i := range p.Spec.Containers {
		names = append(names, p.Spec.Containers[i].Name)
	}
	for i := range p.Spec.EphemeralContainers {
		names = append(names, p.Spec.EphemeralContainers[i].Name)
	}
	return names
}

// layer names what containers of one name have written in a pod.
type layer struct {
	pod       types.UID
	container string
}

// layers asks the runtime what containers have written into their root file systems; those that have ended and are
// still there count with the ones that run.
func (s *Stats) layers(ctx context.Context) (map[layer]Disk, error) {
	list, err := s.containerStats(ctx)
	out := map[layer]Disk{}
	for _, got := range list {
		a := got.GetAttributes()
		key := layer{types.UID(a.GetLabels()["io.kubernetes.pod.uid"]), a.GetMetadata().GetName()}
		w := got.GetWritableLayer()
		out[key] = out[key].Add(Disk{w.GetUsedBytes().GetValue(), w.GetInodesUsed().GetValue()})
	}
	return out, err
}

// snapshot are the figures of now.
func (d *disks) snapshot() map[types.UID]*disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make(map[types.UID]*disk, len(d.of))
	for uid, one := range d.of {
		out[uid] = one
	}
	return out
}

func (d *disks) set(uid types.UID, one *disk) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.of[uid] = one
}

// forgetExcept drops the pods that are gone.
func (d *disks) forgetExcept(pods []*v1.Pod) {
	there := make(map[types.UID]bool, len(pods))
	for _, p := range pods {
		there[p.UID] = true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for uid := range d.of {
		if !there[uid] {
			delete(d.of, uid)
		}
	}
}

// dueForMeasuring are the pods that have to be measured.
func (d *disks) dueForMeasuring(pods []*v1.Pod, now time.Time, urgent bool) []*v1.Pod {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []*v1.Pod
	for _, p := range pods {
		have := d.of[p.UID]
		if have == nil || now.Sub(have.at) >= have.validFor(urgent) {
			out = append(out, p)
		}
	}
	return out
}
