package volume

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// usageTimeout bounds how long a server or a disk may take to tell how full a file system is.
const usageTimeout = 3 * time.Second

// usageFresh is how long figures are good: each look is a process. It is the kubelet's default of volumeStatsAggPeriod.
const usageFresh = time.Minute

// sectorSize is the unit in which the kernel tells the size of a block device, whatever its own sectors are.
const sectorSize = 512

// FileSystem is how full a file system is, in bytes and files.
type FileSystem struct {
	Capacity, Available, Used      int64
	Inodes, InodesFree, InodesUsed int64
}

// ClaimUsage is how full the volume of a claim is.
type ClaimUsage struct {
	PodUID types.UID
	// Claim is what the pod has it through, Name the PersistentVolume.
	Claim types.NamespacedName
	Name  string
	// FileSystem is the one on which the volume is; of a block device only Capacity is known.
	FileSystem
}

// ClaimUsages returns how full the local and NFS volumes of claims are that pods have. As with the kubelet, the figures
// are those of the file system, and a hostPath volume has none. Those that cannot be looked at in time are left out.
func (m *Manager) ClaimUsages(ctx context.Context) []ClaimUsage {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var out []ClaimUsage
	for uid, specs := range m.claimed() {
		for _, spec := range specs {
			wg.Go(func() {
				fs, ok, err := m.usageInTime(ctx, uid, spec)
				if err != nil {
					klog.V(4).InfoS("Usage of a volume unknown", "volume", spec.Name, "podUID", uid, "err", err)
				}
				if err != nil || !ok {
					return
				}
				claim := types.NamespacedName{Namespace: spec.Claim.Namespace, Name: spec.Claim.Name}
				mu.Lock()
				defer mu.Unlock()
				out = append(out, ClaimUsage{PodUID: uid, Claim: claim, Name: spec.Name, FileSystem: fs})
			})
		}
	}
	wg.Wait()
	return out
}

// volumeOfPod names a volume of a pod.
type volumeOfPod struct {
	uid  types.UID
	name string
}

// usageLook is a look at one volume: one that has not returned, or the newest that did.
type usageLook struct {
	// done is closed when the fields below hold.
	done chan struct{}
	at   time.Time
	fs   FileSystem
	ok   bool
	err  error
}

// fresh reports whether no new measurement is needed: one is under way, or its figures are recent.
func (l *usageLook) fresh() bool {
	select {
	case <-l.done:
		return l.ok && time.Since(l.at) < usageFresh
	default:
		return true
	}
}

// usageInTime returns what usageOf found within the last usageFresh, or looks again and waits for at most usageTimeout.
// A disk that fails can hold a process so that no signal ends it: the look at such a volume is left alone, and until it
// returns everyone who asks waits for the same one.
func (m *Manager) usageInTime(ctx context.Context, uid types.UID, spec Spec) (FileSystem, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	key := volumeOfPod{uid, spec.Name}
	m.mu.Lock()
	look := m.looks[key]
	if look == nil || !look.fresh() {
		look = &usageLook{done: make(chan struct{})}
		m.looks[key] = look
		go m.measureUsage(context.WithoutCancel(ctx), uid, spec, look)
	}
	m.mu.Unlock()
	select {
	case <-look.done:
		return look.fs, look.ok, look.err
	case <-ctx.Done():
		return FileSystem{}, false,
			fmt.Errorf("usage of volume %s is unknown: its disk or server does not answer: %w", spec.Name, ctx.Err())
	}
}

// measureUsage measures a volume's usage, and completes look with the result.
func (m *Manager) measureUsage(ctx context.Context, uid types.UID, spec Spec, look *usageLook) {
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	look.fs, look.ok, look.err = m.usageOf(ctx, uid, spec)
	look.at = time.Now()
	close(look.done)
}

// claimed returns what the claims of all pods are bound to.
func (m *Manager) claimed() map[types.UID][]Spec {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[types.UID][]Spec{}
	for uid, specs := range m.specs {
		for _, spec := range specs {
			if spec.PV != nil && spec.Claim != nil {
				out[uid] = append(out[uid], spec)
			}
		}
	}
	return out
}

// usageOf looks at one volume; ok is false for a type without figures.
func (m *Manager) usageOf(ctx context.Context, uid types.UID, spec Spec) (fs FileSystem, ok bool, err error) {
	src := &spec.PV.Spec.PersistentVolumeSource
	plugin := ""
	switch {
	case src.Local != nil && spec.Block:
		fs.Capacity, err = deviceSize(src.Local.Path)
		return fs, err == nil, err
	case src.Local != nil:
		plugin = pluginLocal
	case src.NFS != nil:
		plugin = pluginNFS
	default:
		return fs, false, nil
	}
	dir, err := m.podVolume(uid, plugin, spec.Name)
	if err != nil {
		return fs, false, err
	}
	// A folder on which nothing is mounted yet is on the node's own file system. The list of mounts asks no server.
	if points, err := mountsBelow(dir); err != nil || len(points) == 0 {
		return fs, false, err
	}
	fs, err = m.opts.Mounter.Usage(ctx, dir)
	return fs, err == nil, err
}

// fileSystem makes bytes of blocks.
func fileSystem(size, blocks, free, available, files, filesFree int64) FileSystem {
	return FileSystem{
		Capacity:   blocks * size,
		Available:  available * size,
		Used:       (blocks - free) * size,
		Inodes:     files,
		InodesFree: filesFree,
		InodesUsed: files - filesFree,
	}
}

// deviceSize returns how many bytes a block device has. The kernel tells it without opening the device, which may hang.
func deviceSize(path string) (int64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0, fmt.Errorf("%s is not a block device", path)
	}
	name := fmt.Sprintf("/sys/dev/block/%d:%d/size", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	sectors, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return sectors * sectorSize, nil
}
