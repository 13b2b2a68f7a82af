package volume

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// setupEmptyDir makes a folder that every user of the pod may write, on the disk or in memory. What is
// in it stays for as long as the pod does; in memory, until a reboot.
func (m *Manager) setupEmptyDir(pod *v1.Pod, vol *v1.Volume) (string, error) {
	dir, err := m.volumeDir(pod, "empty-dir", vol.Name)
	if err != nil {
		return "", err
	}
	switch medium := vol.EmptyDir.Medium; medium {
	case v1.StorageMediumDefault:
	case v1.StorageMediumMemory:
		var size int64
		if limit := vol.EmptyDir.SizeLimit; limit != nil {
			size = limit.Value()
		}
		if err := ensureTmpfs(dir, size); err != nil {
			return "", err
		}
	default:
		return "", fmt.Errorf("emptyDir medium %q is not supported by this node; want \"\" or %q", medium, v1.StorageMediumMemory)
	}
	mode := os.FileMode(0o777)
	if group := fsGroup(pod); group != nil {
		if err := os.Chown(dir, -1, int(*group)); err != nil {
			return "", err
		}
		mode |= os.ModeSetgid
	}
	return dir, os.Chmod(dir, mode)
}

// ensureTmpfs mounts a tmpfs of a size in bytes (0: the kernel's default) unless one is there.
func ensureTmpfs(dir string, size int64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return err
	}
	mounted, err := isMountpoint(dir)
	if err != nil {
		return err
	}
	if mounted && fs.Type == unix.TMPFS_MAGIC {
		return nil
	}
	options := ""
	if size > 0 {
		options = "size=" + strconv.FormatInt(size, 10)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", dir, err)
	}
	return nil
}
