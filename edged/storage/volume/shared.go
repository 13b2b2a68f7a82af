package volume

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// share puts a folder of a pod on a shared mount, as mountPropagation needs. systemd makes every mount shared; on a
// system without it the folder becomes a mount of its own, which is torn down with the pod.
func share(dir string) error {
	shared, err := isShared(dir)
	if err != nil || shared {
		return err
	}
	mounted, err := isMountpoint(dir)
	if err != nil {
		return err
	}
	if !mounted {
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s to itself: %w", dir, err)
		}
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		err = fmt.Errorf("make the mount of %s shared: %w", dir, err)
		if !mounted {
			err = errors.Join(err, unmountAll(dir))
		}
		return err
	}
	return nil
}

// isShared reports whether the mount on which a folder lies shares what is mounted on it.
func isShared(dir string) (bool, error) {
	id, err := mountIDOf(dir)
	if err != nil {
		return false, err
	}
	infos, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		found := uint64(i.ID) == id
		return !found, found
	})
	if err != nil {
		return false, fmt.Errorf("list mounts: %w", err)
	}
	if len(infos) == 0 {
		return false, &os.PathError{Op: "look for the mount of", Path: dir, Err: os.ErrNotExist}
	}
	return strings.Contains(infos[0].Optional, "shared:"), nil
}
