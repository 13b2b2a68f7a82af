package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Driver puts volumes in place that are neither files of the agent nor folders of the node: those of CSI.
//
// dir is a folder of this volume of this pod alone, where the kubelet has it:
// <pod>/volumes/kubernetes.io~csi/<Spec.Name>, or <pod>/volumeDevices/kubernetes.io~csi/<Spec.Name> for a device. It is
// there when Setup is called, and what is in it (a mount, a link to a device, a record of what was done) is the
// driver's; it should note what Teardown needs before it does what Teardown has to undo, since the agent may be killed
// at any point.
type Driver interface {
	// Setup puts a volume in place and returns its path on the node: a folder to be mounted into containers, or with
	// Spec.Block a device (or a link to one). It is called at each sync of the pod, also when the volume is mounted
	// already, and then should be quick and ask no other component. The driver decides whether fsGroup applies, and
	// calls SetOwnership. An error becomes an event "MountVolume.SetUp failed for volume ...".
	Setup(ctx context.Context, pod *v1.Pod, spec Spec, dir string) (path string, err error)
	// Teardown undoes Setup from what is in dir alone: the pod's spec, the claim and this process's memory of them may
	// be gone. No container of the pod runs any more, and no bind of a path within the volume is left. After success
	// nothing is mounted in dir. It is called again until it succeeds, and also for a dir that it has done with.
	Teardown(ctx context.Context, uid types.UID, dir string) error
}

// The folders of a pod in which volumes are, and that of drivers in them.
const (
	volumesDir = "volumes"
	devicesDir = "volumeDevices"
	pluginCSI  = "csi"
)

// setupDriven hands a volume to the driver.
func (m *Manager) setupDriven(ctx context.Context, pod *v1.Pod, spec Spec) (PodVolume, error) {
	if m.opts.Driver == nil {
		return PodVolume{}, errors.New("this node has no CSI; use " + supported)
	}
	parent := volumesDir
	if spec.Block {
		parent = devicesDir
	}
	dir, err := m.folder(pod, parent, pluginCSI, spec.Name)
	if err != nil {
		return PodVolume{}, err
	}
	if err := os.Mkdir(dir, 0o750); err != nil && !os.IsExist(err) {
		return PodVolume{}, err
	}
	path, err := m.opts.Driver.Setup(ctx, pod, spec, dir)
	return PodVolume{Path: path, ReadOnly: spec.ReadOnly, Block: spec.Block}, err
}

// teardownDriven has the driver undo all its volumes of a pod.
func (m *Manager) teardownDriven(ctx context.Context, uid types.UID, podDir string) error {
	var errs []error
	for _, parent := range []string{volumesDir, devicesDir} {
		dirs, err := foldersIn(filepath.Join(podDir, parent, pluginDir(pluginCSI)))
		if err != nil {
			return err
		}
		for _, dir := range dirs {
			if m.opts.Driver == nil {
				errs = append(errs, fmt.Errorf("%s: this agent has no CSI to unmount the volume with; start one "+
					"that has",
					dir))
				continue
			}
			if err := m.opts.Driver.Teardown(ctx, uid, dir); err != nil {
				errs = append(errs, fmt.Errorf("UnmountVolume.TearDown failed for volume %q : %w", filepath.Base(dir),
					err))
			}
		}
	}
	return errors.Join(errs...)
}

// foldersIn returns the paths of the folders in a folder; none where it is not there.
func foldersIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, e := range entries {
		if e.IsDir() {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths, nil
}

// Devices makes the CRI form of a container's block devices.
func (m *Manager) Devices(c *v1.Container, vols Volumes) ([]*runtimeapi.Device, error) {
	var out []*runtimeapi.Device
	for _, d := range c.VolumeDevices {
		place, ok := vols[d.Name]
		if !ok || !place.Block {
			return nil,
				fmt.Errorf("container %s has volume %q as a device, and the pod has no such volume with "+
					"volumeMode Block", c.Name, d.Name)
		}
		path, err := filepath.EvalSymlinks(place.Path)
		if err != nil {
			return nil, fmt.Errorf("device of volume %q: %w", d.Name, err)
		}
		permissions := "mrw"
		if place.ReadOnly {
			permissions = "r"
		}
		out = append(out, &runtimeapi.Device{HostPath: path, ContainerPath: d.DevicePath, Permissions: permissions})
	}
	return out, nil
}
