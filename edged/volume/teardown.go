package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// Teardown takes a pod's volumes away: it unmounts what is mounted below the pod's folder and removes
// the folder. It knows a pod by its UID only, and may be called again.
func (m *Manager) Teardown(_ context.Context, uid types.UID) error {
	dir, err := m.podDir(uid)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := unmountAll(dir); err != nil {
		return err
	}
	for _, sub := range []string{"volumes", subPathDirs} {
		if err := removeTree(filepath.Join(dir, sub)); err != nil {
			return err
		}
	}
	return nil
}

// RemovePodDir removes the whole folder of a pod, after Teardown.
func (m *Manager) RemovePodDir(uid types.UID) error {
	dir, err := m.podDir(uid)
	if err != nil {
		return err
	}
	if err := unmountAll(dir); err != nil {
		return err
	}
	return removeTree(dir)
}

// unmountAll unmounts a path and all that is mounted below it, the deepest first.
func unmountAll(path string) error {
	mounts, err := mountsBelow(path)
	if err != nil {
		return err
	}
	for _, mount := range slices.Backward(mounts) {
		err := unix.Unmount(mount, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) {
			// Nothing of the pod runs any more; what holds it open loses it when it closes it.
			err = unix.Unmount(mount, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount %s: %w", mount, err)
		}
	}
	return nil
}

// mountsBelow returns the mount points at and below a path, in the order in which they were mounted.
func mountsBelow(path string) ([]string, error) {
	real, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	path = filepath.Join(real, filepath.Base(path))
	infos, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		return i.Mountpoint != path && !strings.HasPrefix(i.Mountpoint, path+"/"), false
	})
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	points := make([]string, 0, len(infos))
	for _, i := range infos {
		points = append(points, i.Mountpoint)
	}
	return points, nil
}

func isMountpoint(path string) (bool, error) {
	mounts, err := mountsBelow(path)
	if err != nil {
		return false, err
	}
	real, err := filepath.EvalSymlinks(path)
	return err == nil && slices.Contains(mounts, real), err
}

// removeTree removes a folder and what is in it, on its own file system only: should something still be
// mounted below it, that is left and reported.
func removeTree(dir string) error {
	var root unix.Stat_t
	if err := unix.Lstat(dir, &root); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return err
	}
	if mounts, err := mountsBelow(dir); err != nil || len(mounts) > 0 {
		return errors.Join(err, mountedError(mounts))
	}
	return removeOn(dir, root.Dev)
}

func mountedError(mounts []string) error {
	if len(mounts) == 0 {
		return nil
	}
	return fmt.Errorf("still mounted: %s; unmount it, and the folder is removed", strings.Join(mounts, ", "))
}

// removeOn removes a tree as long as it stays on one device.
func removeOn(path string, dev uint64) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return err
	}
	if st.Dev != dev {
		return fmt.Errorf("%s is on another file system; it is left alone", path)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return os.Remove(path)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := removeOn(filepath.Join(path, e.Name()), dev); err != nil {
			return err
		}
	}
	return os.Remove(path)
}
