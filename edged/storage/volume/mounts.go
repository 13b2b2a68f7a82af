package volume

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/podstate/status"
)

// Mounts makes the CRI form of a container's mounts. expand replaces $(VAR) in subPathExpr. A sub-path is
// resolved within its volume and bound below the pod's folder: what the container changes later
// cannot move it.
func (m *Manager) Mounts(
	pod *v1.Pod, c *v1.Container, vols Volumes, expand func(string) (string, error),
) ([]*runtimeapi.Mount, error) {
	var out []*runtimeapi.Mount
	for i := range c.VolumeMounts {
		if isImage(pod, c.VolumeMounts[i].Name) {
			continue
		}
		mount, err := m.mount(pod, c, i, vols, expand)
		if err != nil {
			return nil, err
		}
		out = append(out, mount)
	}
	return out, nil
}

// isImage reports whether a volume is an image, which has no path on the node.
func isImage(pod *v1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(vol v1.Volume) bool {
		return vol.Name == name && vol.Image != nil
	})
}

func (m *Manager) mount(
	pod *v1.Pod, c *v1.Container, index int, vols Volumes, expand func(string) (string, error),
) (*runtimeapi.Mount, error) {
	vm := &c.VolumeMounts[index]
	place, ok := vols[vm.Name]
	if !ok {
		return nil, fmt.Errorf("cannot find volume %q to mount into container %q", vm.Name, c.Name)
	}
	if place.Block {
		return nil,
			fmt.Errorf("volume mount %q of container %s: the volume is a block device; name it in volumeDevices",
				vm.Name, c.Name)
	}
	if len(vm.BindMountOptions) > 0 {
		return nil,
			fmt.Errorf("volume mount %q of container %s: bindMountOptions are not supported by this node; leave "+
				"them out", vm.Name, c.Name)
	}
	host := place.Path
	propagation, err := propagationOf(vm, c)
	if err != nil {
		return nil, err
	}
	if propagation != runtimeapi.MountPropagation_PROPAGATION_PRIVATE {
		if dir, err := m.podDir(pod.UID); err != nil {
			return nil, err
		} else if strings.HasPrefix(host, dir+"/") { // a folder of the node stays as it is
			if err := share(host); err != nil {
				return nil, fmt.Errorf("mountPropagation of volume mount %q of container %s: %w", vm.Name, c.Name, err)
			}
		}
	}
	sub := vm.SubPath
	if vm.SubPathExpr != "" {
		if sub, err = expand(vm.SubPathExpr); err != nil {
			return nil, err
		}
	}
	if sub != "" {
		if err := checkSubPath(sub); err != nil {
			return nil, err
		}
		if host, err = m.bindSubPath(pod, c, index, host, sub, propagation); err != nil {
			// Anyone who reads the pod is not to learn what the node has at the end of a link: the details are for the
			// log alone.
			klog.ErrorS(err, "SubPath not prepared", "pod", klog.KObj(pod), "container", c.Name, "volume", vm.Name)
			return nil, fmt.Errorf("failed to %s for volumeMount %q of container %q", subPathStep(err), vm.Name, c.Name)
		}
	}
	recursive, err := status.RecursiveReadOnly(vm, func() bool {
		return m.opts.RecursiveReadOnly != nil && m.opts.RecursiveReadOnly(pod)
	})
	if err != nil {
		return nil, fmt.Errorf("failed to resolve recursive read-only mode: %w", err)
	}
	target := vm.MountPath
	if !filepath.IsAbs(target) {
		target = "/" + target
	}
	return &runtimeapi.Mount{
		HostPath:          host,
		ContainerPath:     target,
		Readonly:          vm.ReadOnly || place.ReadOnly,
		RecursiveReadOnly: recursive,
		Propagation:       propagation,
	}, nil
}

// filledByAgent reports whether the agent fills a volume: containers see such a one read-only.
func filledByAgent(vol *v1.Volume) bool {
	return vol.ConfigMap != nil || vol.Secret != nil || vol.DownwardAPI != nil || vol.Projected != nil
}

func propagationOf(vm *v1.VolumeMount, c *v1.Container) (runtimeapi.MountPropagation, error) {
	if vm.MountPropagation == nil {
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE, nil
	}
	switch *vm.MountPropagation {
	case v1.MountPropagationNone:
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE, nil
	case v1.MountPropagationHostToContainer:
		return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, nil
	case v1.MountPropagationBidirectional:
		if c.SecurityContext == nil || !isTrue(c.SecurityContext.Privileged) {
			return 0, fmt.Errorf("volume mount %q of container %s: Bidirectional mount propagation is available only "+
				"to privileged containers", vm.Name, c.Name)
		}
		return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL, nil
	}
	return 0,
		fmt.Errorf("volume mount %q of container %s: mountPropagation %q is unknown; want None, HostToContainer or "+
			"Bidirectional", vm.Name, c.Name, *vm.MountPropagation)
}
