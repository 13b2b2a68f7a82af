package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Unmount unmounts all below a folder: the volumes of pods that were still there when their agent ended.
func Unmount(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(mounts) {
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", m.Mountpoint, err)
		}
	}
	return nil
}

// RemoveLogLinks removes the links to logs of pods in a folder that an agent left in the machine's folder of such
// links. No agent would: their targets go with the agent's own folder.
func RemoveLogLinks(logs string) error {
	const folder = "/var/log/containers"
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var errs []error
	for _, e := range entries {
		link := filepath.Join(folder, e.Name())
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, logs+"/") {
			if err := os.Remove(link); !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
