package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// setupClaim puts in place what a claim is bound to.
func (m *Manager) setupClaim(ctx context.Context, pod *v1.Pod, vol *v1.Volume) (PodVolume, error) {
	spec, err := m.spec(ctx, pod, vol)
	if err != nil {
		return PodVolume{}, err
	}
	if err := m.checkNode(ctx, spec); err != nil {
		return PodVolume{}, err
	}
	if err := m.checkAlone(pod, spec); err != nil {
		return PodVolume{}, err
	}
	src := &spec.PV.Spec.PersistentVolumeSource
	switch {
	case src.CSI != nil:
		return m.setupDriven(ctx, pod, spec)
	case src.Local != nil:
		return m.setupLocal(ctx, pod, spec)
	case spec.Block:
		return PodVolume{},
			fmt.Errorf("PersistentVolume %s has volumeMode Block, which only csi and local volumes can have on "+
				"this node", spec.PV.Name)
	case src.HostPath != nil:
		return PodVolume{Path: src.HostPath.Path, ReadOnly: spec.ReadOnly}, checkHostPath(src.HostPath)
	case src.NFS != nil:
		return m.setupNFS(ctx, pod, nfsMount{
			name:     spec.Name,
			source:   src.NFS,
			readOnly: spec.ReadOnly,
			options:  mountOptions(spec.PV),
		})
	}
	return PodVolume{},
		fmt.Errorf("PersistentVolume %s is of type %s, which is not supported by this node; use csi, local, nfs or "+
			"hostPath", spec.PV.Name, persistentType(src))
}

// affinityError is a volume that is not for this node.
type affinityError struct{ err error }

func (e *affinityError) Error() string { return e.err.Error() }

// checkNode refuses a volume that is for other nodes.
func (m *Manager) checkNode(ctx context.Context, spec Spec) error {
	if spec.PV.Spec.NodeAffinity == nil || spec.PV.Spec.NodeAffinity.Required == nil || m.opts.Selects == nil {
		return nil
	}
	fits, err := m.opts.Selects(ctx, spec.PV.Spec.NodeAffinity.Required)
	switch {
	case err != nil:
		return &affinityError{err}
	case !fits:
		return &affinityError{errors.New("no matching NodeSelectorTerms")}
	}
	return nil
}

// checkAlone refuses a volume that one pod alone may have, and another on this node has. It also notes that this pod
// has it.
func (m *Manager) checkAlone(pod *v1.Pod, spec Spec) error {
	modes := spec.PV.Spec.AccessModes
	if len(modes) != 1 || modes[0] != v1.ReadWriteOncePod {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	holder, taken := m.alone[spec.PV.Name]
	if !taken {
		var err error
		if taken, err = m.hasFolder(spec.PV.Name, pod.UID); err != nil {
			return err
		}
	}
	if taken && holder != pod.UID {
		return errors.New("volume uses the ReadWriteOncePod access mode and is already in use by another pod")
	}
	m.alone[spec.PV.Name] = pod.UID
	return nil
}

// hasFolder reports whether another pod has a folder of a volume that was set up before this agent started.
func (m *Manager) hasFolder(name string, besides types.UID) (bool, error) {
	for _, parent := range []string{volumesDir, devicesDir} {
		dirs, err := filepath.Glob(filepath.Join(m.opts.Root, "pods", "*", parent, "*", name))
		if err != nil {
			return false, err
		}
		own := filepath.Join(m.opts.Root, "pods", string(besides)) + "/"
		if slices.ContainsFunc(dirs, func(dir string) bool { return !strings.HasPrefix(dir, own) }) {
			return true, nil
		}
	}
	return false, nil
}

// setupLocal puts a folder or block device of the node in place. A folder is bound, as the kubelet does it.
func (m *Manager) setupLocal(ctx context.Context, pod *v1.Pod, spec Spec) (PodVolume, error) {
	path := spec.PV.Spec.Local.Path
	if !filepath.IsAbs(path) || hasDotDot(path) {
		return PodVolume{},
			fmt.Errorf("local path %q of PersistentVolume %s must be absolute and must not contain '..'",
				path, spec.PV.Name)
	}
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return PodVolume{}, fmt.Errorf("path %q does not exist; make it on the node", path)
	}
	if err != nil {
		return PodVolume{}, err
	}
	device := info.Mode()&os.ModeType == os.ModeDevice
	switch {
	case spec.Block && device:
		return PodVolume{Path: path, ReadOnly: spec.ReadOnly, Block: true}, nil
	case spec.Block:
		return PodVolume{}, fmt.Errorf("PersistentVolume %s has volumeMode Block, and %s is not a block device",
			spec.PV.Name,
			path)
	case device:
		return m.setupLocalDevice(ctx, pod, spec, path)
	case !info.IsDir():
		return PodVolume{}, fmt.Errorf("%s: only directory and block device are supported", path)
	}
	dir, mounted, err := m.mountTarget(pod, pluginLocal, spec.Name)
	place := PodVolume{Path: dir, ReadOnly: spec.ReadOnly}
	if err != nil || mounted {
		return place, err
	}
	if err := m.giveLocal(ctx, pod, spec, path); err != nil {
		return PodVolume{}, err
	}
	if err := bindFolder(path, dir, spec.ReadOnly); err != nil {
		return place, err
	}
	return place, m.giveOptions(ctx, path, dir, spec)
}

// giveOptions has the bind of a local volume keep the mount options of its PersistentVolume, such as noexec. A bind
// without them is taken away.
func (m *Manager) giveOptions(ctx context.Context, path, dir string, spec Spec) error {
	named := mountOptions(spec.PV)
	if len(named) == 0 {
		return nil
	}
	options := append([]string{"bind", "remount"}, named...)
	if spec.ReadOnly {
		options = append(options, "ro")
	}
	if err := m.opts.Mounter.Mount(ctx, path, dir, "", options); err != nil {
		err = fmt.Errorf("mount options %v of PersistentVolume %s: %w", named, spec.PV.Name, err)
		return errors.Join(err, unmountAll(dir))
	}
	return nil
}

// giveLocal sets the group of a local volume before it is bound, so that a bind tells that it was done. A volume that
// another pod has keeps its group.
func (m *Manager) giveLocal(ctx context.Context, pod *v1.Pod, spec Spec, path string) error {
	own := OwnershipOf(pod)
	if own == nil || spec.ReadOnly {
		return nil
	}
	others, err := filepath.Glob(filepath.Join(m.opts.Root, "pods", "*", volumesDir, pluginDir(pluginLocal), spec.Name))
	if err != nil {
		return err
	}
	for _, other := range others {
		if strings.HasPrefix(other, filepath.Join(m.opts.Root, "pods", string(pod.UID))+"/") {
			continue
		}
		if mounted, err := isMountpoint(other); err != nil || mounted {
			return err
		}
	}
	return SetOwnership(ctx, path, *own)
}

// setupLocalDevice mounts the file system of a block device.
func (m *Manager) setupLocalDevice(ctx context.Context, pod *v1.Pod, spec Spec, device string) (PodVolume, error) {
	dir, mounted, err := m.mountTarget(pod, pluginLocal, spec.Name)
	place := PodVolume{Path: dir, ReadOnly: spec.ReadOnly}
	own := OwnershipOf(pod)
	if err != nil {
		return PodVolume{}, err
	}
	if mounted {
		if own == nil || spec.ReadOnly {
			return place, nil
		}
		// the top comes last: it shows whether an earlier call was complete
		own.Policy = ptr.To(v1.FSGroupChangeOnRootMismatch)
		return place, SetOwnership(ctx, dir, *own)
	}
	kind := "ext4"
	if t := spec.PV.Spec.Local.FSType; t != nil && *t != "" {
		kind = *t
	}
	options := mountOptions(spec.PV)
	if spec.ReadOnly {
		options = append(options, "ro")
	}
	if err := m.mountDevice(ctx, device, dir, kind, options, spec.ReadOnly); err != nil {
		return PodVolume{}, fmt.Errorf("local: failed to mount device %s at %s (fstype: %s), error %w", device, dir,
			kind,
			err)
	}
	if own == nil || spec.ReadOnly {
		return place, nil
	}
	return place, SetOwnership(ctx, dir, *own)
}

// mountDevice mounts the file system of a device, and makes one on a device that holds nothing.
func (m *Manager) mountDevice(ctx context.Context, device, dir, kind string, options []string, readOnly bool) error {
	err := m.opts.Mounter.Mount(ctx, device, dir, kind, options)
	if err == nil || readOnly {
		return err
	}
	formatted, formatErr := m.opts.Mounter.Format(ctx, device, kind)
	if !formatted {
		return errors.Join(err, formatErr)
	}
	klog.InfoS("Formatted an empty device", "device", device, "fileSystem", kind)
	return m.opts.Mounter.Mount(ctx, device, dir, kind, options)
}

// mountTarget returns the folder of a volume, made, and whether something is mounted on it.
func (m *Manager) mountTarget(pod *v1.Pod, plugin, name string) (dir string, mounted bool, err error) {
	if dir, err = m.folder(pod, volumesDir, plugin, name); err != nil {
		return "", false, err
	}
	if err := os.Mkdir(dir, 0o750); err != nil && !os.IsExist(err) {
		return "", false, err
	}
	mounted, err = isMountpoint(dir)
	return dir, mounted, err
}

// bindFolder binds a folder of the node, without what is mounted in it. The bind shares mounts with the folder where
// that is on a shared mount, as mountPropagation needs; unmountAll makes it private before it takes it away.
func bindFolder(path, dir string, readOnly bool) error {
	err := unix.Mount(path, dir, "", unix.MS_BIND, "")
	if err != nil {
		return fmt.Errorf("bind %s to %s: %w", path, dir, err)
	}
	if readOnly {
		err = unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	if err != nil {
		return errors.Join(fmt.Errorf("bind %s to %s: %w", path, dir, err), unmountAll(dir))
	}
	return nil
}

// mountOptions are those of a PersistentVolume: from the deprecated annotation, or else from its spec.
func mountOptions(pv *v1.PersistentVolume) []string {
	if text, ok := pv.Annotations[v1.MountOptionAnnotation]; ok {
		return slices.DeleteFunc(strings.Split(text, ","), func(o string) bool { return o == "" })
	}
	return slices.Clone(pv.Spec.MountOptions)
}
