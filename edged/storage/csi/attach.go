package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// driverInfo asks how a driver wants its volumes handled. known is false if that is unknown.
func (m *Manager) driverInfo(ctx context.Context, r *request) (how driverInfo, known bool, err error) {
	obj, err := m.opts.Objects.CSIDriver(ctx, r.driver)
	if ctx.Err() != nil {
		return driverInfo{}, false, ctx.Err()
	}
	known = err == nil || apierrors.IsNotFound(err)
	if err != nil {
		obj = nil
	}
	how, err = driverInfoOf(r.driver, obj, known, r.mode)
	return how, known, err
}

// attached makes sure that a volume is attached to this node, and returns the attachment's metadata. Without a
// CSIDriver object, the volume needs to be attached only if a VolumeAttachment exists.
func (m *Manager) attached(
	ctx context.Context, r *request, rec *record, how driverInfo, known bool,
) (map[string]string, error) {
	if !how.attach {
		return nil, nil
	}
	name := attachmentOf(r.handle, r.driver, m.opts.NodeName)
	a, err := m.opts.Objects.VolumeAttachment(ctx, name)
	if err != nil && !known && ctx.Err() == nil {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("volume %s is not attached to the node yet: VolumeAttachment %s: %w", r.handle, name,
			err)
	}
	rec.Attachment = name
	return attachmentState(a)
}

// attachmentState returns what an attachment gives for the mounting of its volume, or why the volume is not there.
func attachmentState(a *storagev1.VolumeAttachment) (map[string]string, error) {
	switch {
	case a.DeletionTimestamp != nil:
		return nil, fmt.Errorf("VolumeAttachment %s is being deleted", a.Name)
	case a.Status.AttachError != nil:
		return nil, fmt.Errorf("VolumeAttachment %s: %s", a.Name, a.Status.AttachError.Message)
	case !a.Status.Attached:
		return nil, fmt.Errorf("volume attachment %s is not ready: its driver has not attached it yet", a.Name)
	}
	return a.Status.AttachmentMetadata, nil
}

// noteInUse notes that a pod uses a volume that was attached, or will be.
func (m *Manager) noteInUse(dir string, rec record) {
	if rec.Attachment == "" {
		return
	}
	m.mu.Lock()
	v := m.volumes[dir]
	fresh := v == nil || v.record.Attachment == ""
	if v == nil {
		v = &mounted{record: rec}
		m.volumes[dir] = v
	}
	if fresh && !m.inUse(rec, dir) {
		delete(m.reported, uniqueName(rec)) // what was reported is an earlier use
	}
	v.record.Attachment = rec.Attachment
	m.mu.Unlock()
	if fresh && m.opts.InUse != nil {
		m.opts.InUse()
	}
}

// recall notes the volumes that pods had in use when the agent ended.
func (m *Manager) recall() error {
	var errs []error
	for _, parent := range []string{"volumes", "volumeDevices"} {
		paths, err := filepath.Glob(filepath.Join(escape(m.opts.Root), "pods", "*", parent, "kubernetes.io~csi", "*",
			recordFile))
		if err != nil {
			return err
		}
		for _, path := range paths {
			rec, err := readRecord(filepath.Dir(path))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				errs = append(errs, err)
				continue
			}
			m.noteInUse(filepath.Dir(path), rec)
		}
	}
	return errors.Join(errs...)
}

// VolumesInUse are the volumes that the cluster must not detach, as the Node's status names them.
func (m *Manager) VolumesInUse() []v1.UniqueVolumeName {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []v1.UniqueVolumeName
	for _, v := range m.volumes {
		if v.record.Attachment != "" {
			names = append(names, uniqueName(v.record))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// uniqueName is what the Node's status calls a volume.
func uniqueName(rec record) v1.UniqueVolumeName {
	return v1.UniqueVolumeName("kubernetes.io/csi/" + rec.Driver + "^" + rec.Handle)
}

// inUse reports whether a folder other than one has an attached volume. The caller holds the lock.
func (m *Manager) inUse(rec record, besides string) bool {
	for dir, v := range m.volumes {
		if dir != besides && v.record.Attachment != "" && v.record.Driver == rec.Driver &&
			v.record.Handle == rec.Handle {
			return true
		}
	}
	return false
}

// ReportedInUse notes which volumes the Node's status has that the cloud took last. Pods that waited for one of theirs
// are looked at again.
func (m *Manager) ReportedInUse(names []v1.UniqueVolumeName) {
	m.mu.Lock()
	m.reported = map[v1.UniqueVolumeName]bool{}
	for _, name := range names {
		m.reported[name] = true
	}
	waited := m.waited
	m.waited = false
	m.mu.Unlock()
	if waited && m.opts.Registered != nil {
		m.opts.Registered()
	}
}

// checkReported refuses to mount an attached volume before the cluster knows that it is in use: it may detach it until
// then, under the writes of a pod. That is so for the first mount by a pod. Where the pod has a record of the volume,
// the cluster knew before the record was written, so a device can restart without a cloud.
func (m *Manager) checkReported(dir string, rec record) error {
	if rec.Attachment == "" || m.opts.Cluster == nil {
		return nil
	}
	if was, err := readRecord(dir); err == nil && was.Attachment == rec.Attachment {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reported[uniqueName(rec)] {
		return nil
	}
	m.waited = true
	return fmt.Errorf("volume %s has not been added to the list of VolumesInUse in the node's volume status",
		rec.Handle)
}
