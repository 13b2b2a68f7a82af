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
	"k8s.io/apimachinery/pkg/types"
)

// Teardown takes a pod's volumes away: it unmounts what is mounted below the pod's folder and removes
// the folders of its volumes. It knows a pod by its UID only, and may be called again. No container of the
// pod may run any more. What a driver could not take away stays, with the rest of its folder; all else goes.
func (m *Manager) Teardown(ctx context.Context, uid types.UID) error {
	dir, err := m.existing(uid)
	if err != nil || dir == "" {
		return err
	}
	// The kernel takes long to write the list of mounts of a node with many pods, so for most pods it is read only
	// once.
	mounts, err := mountInfosBelow(dir)
	if err != nil {
		return err
	}
	if err := m.unmountNetwork(ctx, mounts); err != nil {
		return err
	}
	// A bind of a path within a volume keeps that busy.
	if binds := filepath.Join(dir, subPathDirs); isThere(binds) {
		if err := unmountAll(binds); err != nil {
			return err
		}
	}
	if driven := m.teardownDriven(ctx, uid, dir); driven != nil {
		return errors.Join(m.clearOthers(ctx, dir), driven)
	}
	// A server or a driver may have taken minutes, in which others may have mounted something.
	if mayHaveTakenLong(dir, mounts) {
		if mounts, err = mountInfosBelow(dir); err != nil {
			return err
		}
	}
	if err := unmount(mounts); err != nil {
		return err
	}
	if err := removeParts(ctx, dir, volumesDir, devicesDir, subPathDirs); err != nil {
		return err
	}
	m.forget(uid)
	return nil
}

// mayHaveTakenLong reports whether a pod has volumes that a server or a driver had to unmount; mounts are those that it
// had before.
func mayHaveTakenLong(dir string, mounts []*mountinfo.Info) bool {
	csi := pluginDir(pluginCSI)
	return isThere(filepath.Join(dir, volumesDir, csi)) || isThere(filepath.Join(dir, devicesDir, csi)) ||
		slices.ContainsFunc(mounts, func(i *mountinfo.Info) bool { return ofServer(i.FSType) })
}

// clearOthers takes away the volumes of a pod that are not a driver's.
func (m *Manager) clearOthers(ctx context.Context, dir string) error {
	var errs []error
	for _, sub := range []string{volumesDir, devicesDir} {
		plugins, err := foldersIn(filepath.Join(dir, sub))
		errs = append(errs, err)
		for _, plugin := range plugins {
			if filepath.Base(plugin) != pluginDir(pluginCSI) {
				errs = append(errs, clearFolder(ctx, plugin))
			}
		}
	}
	return errors.Join(errs...)
}

// clearFolder unmounts all that is mounted in a folder, and removes it.
func clearFolder(ctx context.Context, dir string) error {
	if err := unmountAll(dir); err != nil {
		return err
	}
	return removeParts(ctx, dir, ".")
}

// removeParts removes parts of a folder; "." is the whole. What is still mounted there is left alone, and named in the
// error.
func removeParts(ctx context.Context, dir string, parts ...string) error {
	for _, part := range parts {
		if err := removeTree(ctx, filepath.Join(dir, part)); err != nil {
			return errors.Join(nothingMounted(dir), err)
		}
	}
	return nil
}

// nothingMounted returns an error that names what is mounted at and below a folder.
func nothingMounted(dir string) error {
	mounts, err := mountsBelow(dir)
	if err == nil && len(mounts) > 0 {
		err = fmt.Errorf("%s is not removed: still mounted are %s; unmount them", dir, strings.Join(mounts, ", "))
	}
	return err
}

// RemovePodDir removes the whole folder of a pod, after Teardown.
func (m *Manager) RemovePodDir(uid types.UID) error {
	dir, err := m.existing(uid)
	if err != nil || dir == "" {
		return err
	}
	for _, parent := range []string{volumesDir, devicesDir} {
		left, err := foldersIn(filepath.Join(dir, parent, pluginDir(pluginCSI)))
		if err != nil {
			return err
		}
		if len(left) > 0 {
			return fmt.Errorf("%s is not removed: its driver has not unmounted the volume", left[0])
		}
	}
	// Nothing is mounted after Teardown, so the list of mounts need not be read.
	if removeTree(context.Background(), dir) == nil {
		return nil
	}
	return clearFolder(context.Background(), dir)
}

// existing returns the folder of a pod, "" when there is none.
func (m *Manager) existing(uid types.UID) (string, error) {
	dir, err := m.podDir(uid)
	if err != nil {
		return "", err
	}
	info, err := os.Lstat(dir)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return "", fmt.Errorf("%s is not a folder; it is left alone, remove it by hand", dir)
	}
	return dir, nil
}

// isThere reports whether there is anything at a path, as far as one can see.
func isThere(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}
