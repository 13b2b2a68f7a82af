package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/storage/volume"
)

// Teardown implements volume.Driver.
func (m *Manager) Teardown(ctx context.Context, uid types.UID, dir string) error {
	rec, err := readRecord(dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			klog.ErrorS(err, "The CSI driver of the volume is unknown; the volume is unmounted without it",
				"folder", dir)
		}
		return m.abandon(dir)
	}
	release, err := m.locks.lock(ctx, rec.Driver, rec.Handle)
	if err != nil {
		return fmt.Errorf("kubernetes.io/csi: %w", err)
	}
	defer release()
	if err := m.undo(ctx, rec, uid, dir); err != nil {
		return fmt.Errorf("kubernetes.io/csi: %w", err)
	}
	m.forget(dir)
	return nil
}

// abandon takes away what is in a folder without a record: nothing, unless the record was lost.
func (m *Manager) abandon(dir string) error {
	if err := volume.UnmountAll(filepath.Join(dir, "mount")); err != nil {
		return err
	}
	if err := removeRecord(dir); err != nil {
		return err
	}
	m.forget(dir)
	return nil
}

func (m *Manager) forget(dir string) {
	m.mu.Lock()
	v := m.volumes[dir]
	delete(m.volumes, dir)
	m.mu.Unlock()
	if v != nil && v.record.Attachment != "" && m.opts.InUse != nil {
		m.opts.InUse()
	}
}

// undo unpublishes a volume of a pod, unstages it if no other pod has it, and removes its record last.
func (m *Manager) undo(ctx context.Context, rec record, uid types.UID, dir string) error {
	d, err := m.driver(rec.Driver)
	if err != nil {
		return err
	}
	m.unready(dir)
	target := m.target(rec, uid, dir)
	if err := m.unpublish(ctx, d, rec, target); err != nil {
		return err
	}
	users, err := m.users(rec.Driver, rec.Handle)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(users, func(user string) bool { return user != dir }) {
		if err := m.unstage(ctx, d, rec); err != nil {
			return err
		}
	}
	return removeRecord(dir)
}

func (m *Manager) unpublish(ctx context.Context, d *driver, rec record, target string) error {
	err := d.call(ctx, func(ctx context.Context, c csi.NodeClient) error {
		_, err := c.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: rec.Handle, TargetPath: target})
		return err
	})
	if err != nil {
		return fmt.Errorf("NodeUnpublishVolume: %w", err)
	}
	return m.removeTarget(rec, target)
}

// unpublishAll unpublishes a block volume for all pods: it is published outside of their folders.
func (m *Manager) unpublishAll(ctx context.Context, d *driver, rec record) error {
	dir := m.published(rec)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if err := m.unpublish(ctx, d, rec, filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return prune(dir, m.deviceDir())
}

// unready notes that a volume is on its way out: if its pod wants it again, it is set up again.
func (m *Manager) unready(dir string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v := m.volumes[dir]; v != nil {
		v.ready = false
	}
}

// removeTarget removes the place where a volume was published. A folder that is not empty stays: it is on the node's
// own disk, so that what is in it is the pod's.
func (m *Manager) removeTarget(rec record, target string) error {
	if err := volume.UnmountAll(target); err != nil {
		return err
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	if rec.Block {
		return prune(filepath.Dir(target), m.deviceDir())
	}
	return nil
}

// prune removes an empty folder, and those above it that are empty then, up to root.
func prune(dir, root string) error {
	for ; dir != root && len(dir) > len(root); dir = filepath.Dir(dir) {
		err := os.Remove(dir)
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EBUSY) {
			return nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// unstage undoes the staging of a volume that no pod has any more.
func (m *Manager) unstage(ctx context.Context, d *driver, rec record) error {
	staging, home := m.staging(rec)
	if _, err := os.Lstat(home); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err := d.call(ctx, func(ctx context.Context, c csi.NodeClient) error {
		_, err := c.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{
			VolumeId: rec.Handle, StagingTargetPath: staging,
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("NodeUnstageVolume: %w", err)
	}
	if mounted, err := volume.IsMountpoint(staging); err == nil && mounted {
		return fmt.Errorf("driver %s says that the volume %s is unstaged, and it is still mounted on %s", rec.Driver,
			rec.Handle, staging)
	}
	if err := os.Remove(staging); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := removeRecord(home); err != nil {
		return err
	}
	if rec.Block {
		if err := prune(filepath.Dir(staging), m.deviceDir()); err != nil {
			return err
		}
	}
	return prune(home, m.pluginDir())
}

// sweep unstages the volumes of a driver that are staged although no pod has them: a pod's folder was removed by hand,
// or its record was lost.
func (m *Manager) sweep(ctx context.Context, d *driver) {
	var homes []string
	for _, pattern := range []string{
		filepath.Join(escape(m.pluginDir()), escape(d.name), "*", recordFile),
		filepath.Join(escape(m.pluginDir()), byName, "*", recordFile),
		filepath.Join(escape(m.deviceDir()), "*", "data", recordFile),
	} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			klog.ErrorS(err, "Staged volumes not listed", "driver", d.name)
		}
		homes = append(homes, paths...)
	}
	for _, path := range homes {
		home := filepath.Dir(path)
		rec, err := readRecord(home)
		if err != nil || rec.Driver != d.name {
			continue
		}
		if filepath.Base(filepath.Dir(home)) == byName && rec.Name == "" { // as a kubelet leaves it
			rec.Name = filepath.Base(home)
		}
		if err := m.sweepOne(ctx, d, rec); err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "Staged volume without a pod not unstaged", "driver", d.name, "volume", rec.Handle)
		}
	}
}

func (m *Manager) sweepOne(ctx context.Context, d *driver, rec record) error {
	release, err := m.locks.lock(ctx, rec.Driver, rec.Handle)
	if err != nil {
		return err
	}
	defer release()
	users, err := m.users(rec.Driver, rec.Handle)
	if err != nil || len(users) > 0 {
		return err
	}
	klog.InfoS("Unstaging a volume without a pod", "driver", d.name, "volume", rec.Handle)
	if rec.Block {
		if err := m.unpublishAll(ctx, d, rec); err != nil {
			return err
		}
	}
	return m.unstage(ctx, d, rec)
}
