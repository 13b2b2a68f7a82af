package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// subPathDirs is where the bound sub-paths of a pod lie, below its folder.
const subPathDirs = "volume-subpaths"

// Mounts makes the CRI form of a container's mounts. expand replaces $(VAR) in subPathExpr. A sub-path is
// resolved within its volume and bound below the pod's folder: what the container changes later
// cannot move it.
func (m *Manager) Mounts(pod *v1.Pod, c *v1.Container, vols Volumes, expand func(string) (string, error)) ([]*runtimeapi.Mount, error) {
	var out []*runtimeapi.Mount
	for i := range c.VolumeMounts {
		vm := &c.VolumeMounts[i]
		host, ok := vols[vm.Name]
		if !ok {
			return nil, fmt.Errorf("container %s mounts volume %q, which the pod does not have", c.Name, vm.Name)
		}
		if vm.RecursiveReadOnly != nil && *vm.RecursiveReadOnly == v1.RecursiveReadOnlyEnabled {
			return nil, fmt.Errorf("volume mount %q: recursiveReadOnly is not supported by this node", vm.Name)
		}
		sub := vm.SubPath
		if vm.SubPathExpr != "" {
			var err error
			if sub, err = expand(vm.SubPathExpr); err != nil {
				return nil, fmt.Errorf("volume mount %q: %w", vm.Name, err)
			}
		}
		if sub != "" {
			bound, err := m.bindSubPath(pod, c, vm.Name, i, host, sub)
			if err != nil {
				return nil, fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q: %w", vm.Name, c.Name, err)
			}
			host = bound
		}
		propagation, err := propagationOf(vm, c)
		if err != nil {
			return nil, err
		}
		target := vm.MountPath
		if !filepath.IsAbs(target) {
			target = "/" + target
		}
		out = append(out, &runtimeapi.Mount{HostPath: host, ContainerPath: target, Readonly: vm.ReadOnly || filledByAgent(pod, vm.Name), Propagation: propagation})
	}
	return out, nil
}

// filledByAgent tells whether the agent fills a volume: containers see such a one read-only.
func filledByAgent(pod *v1.Pod, name string) bool {
	for i := range pod.Spec.Volumes {
		if vol := &pod.Spec.Volumes[i]; vol.Name == name {
			return vol.ConfigMap != nil || vol.Secret != nil || vol.DownwardAPI != nil || vol.Projected != nil
		}
	}
	return false
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
			return 0, fmt.Errorf("volume mount %q: Bidirectional mount propagation is available only to privileged containers", vm.Name)
		}
		return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL, nil
	}
	return 0, fmt.Errorf("volume mount %q: mountPropagation %q is unknown; want None, HostToContainer or Bidirectional", vm.Name, *vm.MountPropagation)
}

// bindSubPath binds what is at a path within a volume, and returns the place of the bind. A missing
// path becomes a folder.
func (m *Manager) bindSubPath(pod *v1.Pod, c *v1.Container, vol string, index int, root, sub string) (string, error) {
	if err := checkSubPath(sub); err != nil {
		return "", err
	}
	fd, err := openBeneath(root, sub)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	dir, err := m.podDir(pod.UID)
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, subPathDirs, vol, c.Name)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	target := filepath.Join(dir, strconv.Itoa(index))
	// An earlier attempt at the container may have bound something that is gone by now.
	if err := unmountAll(target); err != nil {
		return "", err
	}
	if err := makeTarget(target, fd); err != nil {
		return "", err
	}
	if err := unix.Mount("/proc/self/fd/"+strconv.Itoa(fd), target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return "", fmt.Errorf("bind %s: %w", target, err)
	}
	return target, nil
}

func checkSubPath(sub string) error {
	if filepath.IsAbs(sub) {
		return fmt.Errorf("subPath %q must be relative", sub)
	}
	for part := range strings.SplitSeq(sub, "/") {
		if part == ".." {
			return fmt.Errorf("subPath %q must not contain '..'", sub)
		}
	}
	return nil
}

// makeTarget makes the file or folder onto which fd is bound.
func makeTarget(target string, fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return os.Mkdir(target, 0o750)
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	return f.Close()
}

// openBeneath opens a path within root. The kernel resolves it and refuses any link that leads out
// (openat2 with RESOLVE_BENEATH, Linux 5.6), so that there is no race to win for who writes the volume.
func openBeneath(root, sub string) (int, error) {
	rootFD, err := unix.Open(root, unix.O_PATH|unix.O_CLOEXEC|unix.O_DIRECTORY, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", root, err)
	}
	defer unix.Close(rootFD)
	open := func(path string) (int, error) {
		return unix.Openat2(rootFD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS})
	}
	clean := filepath.Clean(sub)
	fd, err := open(clean)
	if !errors.Is(err, unix.ENOENT) {
		return fd, explain(sub, err)
	}
	parts := strings.Split(clean, "/")
	for i := range parts {
		path := filepath.Join(parts[:i+1]...)
		fd, err := open(path)
		if err == nil {
			unix.Close(fd)
			continue
		}
		if !errors.Is(err, unix.ENOENT) {
			return -1, explain(sub, err)
		}
		parent, err := open(filepath.Join(append([]string{"."}, parts[:i]...)...))
		if err != nil {
			return -1, explain(sub, err)
		}
		err = unix.Mkdirat(parent, parts[i], 0o750)
		unix.Close(parent)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return -1, explain(sub, err)
		}
	}
	fd, err = open(clean)
	return fd, explain(sub, err)
}

func explain(sub string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EXDEV):
		return fmt.Errorf("subPath %q leads out of the volume", sub)
	}
	return fmt.Errorf("subPath %q: %w", sub, err)
}
