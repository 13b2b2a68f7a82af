package volume

import (
	"errors"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
)

// setupEmptyDir makes a folder that every user of the pod may write, on the disk or in memory. What is
// in it stays for as long as the pod does; in memory, until a reboot. Owner and mode are set before
// anybody sees it, and never again: containers may change them.
func (m *Manager) setupEmptyDir(pod *v1.Pod, vol *v1.Volume) (string, error) {
	dir, err := m.volumeDir(pod, pluginEmptyDir, vol.Name)
	if err != nil {
		return "", err
	}
	mode, gid := emptyDirAccess(vol.EmptyDir, fsGroup(pod))
	if vol.EmptyDir.Medium == v1.StorageMediumMemory {
		return dir, ensureTmpfs(dir, tmpfs{size: memoryLimit(pod, vol.EmptyDir, m.opts.MemoryBytes), mode: mode,
			gid: gid})
	}
	if isHugePages(vol.EmptyDir.Medium) {
		return dir, m.setupHugePages(pod, dir, vol.EmptyDir)
	}
	return dir, makeOnce(dir, mode, gid)
}

// emptyDirAccess returns the mode and group of an emptyDir. Unless the spec says otherwise, the mode is 0777 on the
// disk, and in memory what the kernel gives its file systems: 1777, or 0755 with huge pages. With an fsGroup that group
// has it, and what is made in it.
func emptyDirAccess(src *v1.EmptyDirVolumeSource, group *int64) (os.FileMode, int) {
	mode := os.FileMode(0o777)
	switch {
	case src.Medium == v1.StorageMediumMemory:
		mode |= os.ModeSticky
	case isHugePages(src.Medium):
		mode = 0o755
	}
	if src.Mode != nil {
		mode = os.FileMode(*src.Mode & 0o777)
		if *src.Mode&0o1000 != 0 {
			mode |= os.ModeSticky
		}
	}
	if group == nil {
		return mode, 0
	}
	return mode | 0o770 | os.ModeSetgid, int(*group)
}

// makeOnce makes a folder that appears with its owner and mode, or not at all.
func makeOnce(dir string, mode os.FileMode, gid int) error {
	if info, err := os.Lstat(dir); err == nil && info.IsDir() {
		return nil
	}
	next := filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+".new") // no volume can have such a name
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Mkdir(next, 0o700); err != nil {
		return err
	}
	if gid != 0 {
		if err := os.Chown(next, -1, gid); err != nil {
			return err
		}
	}
	if err := os.Chmod(next, mode); err != nil {
		return err
	}
	return os.Rename(next, dir)
}

// memoryLimit returns how many bytes an emptyDir in memory may hold: the least of its own limit, the pod's memory limit
// and the node's memory. 0 means no limit.
func memoryLimit(pod *v1.Pod, src *v1.EmptyDirVolumeSource, node int64) int64 {
	limit := node
	lower := func(value int64) {
		if value > 0 && (limit == 0 || value < limit) {
			limit = value
		}
	}
	lower(podMemoryLimit(pod))
	if src.SizeLimit != nil {
		lower(src.SizeLimit.Value())
	}
	return limit
}

// podMemoryLimit returns the memory that all containers of a pod may have together, 0 when one of them has no limit:
// the pod's own limit, or else the larger of what its containers and its init containers have; and the overhead of its
// runtime. An init container without a limit counts as one with those of the sidecars beside which it runs.
func podMemoryLimit(pod *v1.Pod) int64 {
	limit := containersMemoryLimit(pod)
	if limit > 0 {
		limit += pod.Spec.Overhead.Memory().Value()
	}
	return limit
}

func containersMemoryLimit(pod *v1.Pod) int64 {
	if pod.Spec.Resources != nil {
		if own := pod.Spec.Resources.Limits.Memory().Value(); own > 0 {
			return own
		}
	}
	var all, sidecars, peak int64
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		value := c.Resources.Limits.Memory().Value()
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			sidecars += value
			value = 0
		}
		if sidecars+value <= 0 {
			return 0
		}
		peak = max(peak, sidecars+value)
	}
	for i := range pod.Spec.Containers {
		value := pod.Spec.Containers[i].Resources.Limits.Memory().Value()
		if value <= 0 {
			return 0
		}
		all += value
	}
	return max(peak, all+sidecars)
}
