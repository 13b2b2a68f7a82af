package volume

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// usageTimeout bounds how long a server may take to tell how full a file system is.
const usageTimeout = 3 * time.Second

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

// ClaimUsages returns how full the local and NFS volumes of claims are that pods have. As with the kubelet, the figures are those
// of the file system, and a hostPath volume has none. Those that cannot be looked at in time are left out.
func (m *Manager) ClaimUsages(ctx context.Context) []ClaimUsage {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var out []ClaimUsage
	for uid, specs := range m.claimed() {
		for _, spec := range specs {
			wg.Go(func() {
				fs, ok, err := m.usageOf(ctx, uid, spec)
				if err != nil {
					klog.V(4).InfoS("Usage of a volume not known", "volume", spec.Name, "podUID", uid, "err", err)
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
	if plugin == pluginNFS {
		ctx, cancel := context.WithTimeout(ctx, usageTimeout)
		defer cancel()
		fs, err = m.opts.Mounter.Usage(ctx, dir)
		return fs, err == nil, err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fs, false, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	size := int64(st.Bsize) // 32 bits on ARM
	return fileSystem(size, int64(st.Blocks), int64(st.Bfree), int64(st.Bavail), int64(st.Files), int64(st.Ffree)), true, nil
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

// deviceSize returns how many bytes a block device has.
func deviceSize(path string) (int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	if info.Mode()&os.ModeType != os.ModeDevice {
		return 0, fmt.Errorf("%s is not a block device", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.Seek(0, io.SeekEnd)
}
