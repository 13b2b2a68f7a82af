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
	"k8s.io/apimachinery/pkg/util/validation"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// subPathDirs is where the bound sub-paths of a pod lie, below its folder.
const subPathDirs = "volume-subpaths"

// bindSubPath binds what is at a path within a volume, and returns the place of the bind. A missing
// path becomes a folder with the mode of the volume. What is bound there already stays, as long as it is
// still what lies at the path.
func (m *Manager) bindSubPath(
	pod *v1.Pod, c *v1.Container, index int, root, sub string, propagation runtimeapi.MountPropagation,
) (string, error) {
	target, err := m.subPathTarget(pod, c, index)
	if err != nil {
		return "", err
	}
	access, err := accessOf(root)
	if err != nil {
		return "", err
	}
	fd, err := openBeneath(root, sub, access)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	if same, err := isBoundTo(target, fd); err != nil || same {
		return target, err
	}
	// An earlier attempt at the container may have bound something that is gone by now.
	if err := unmountAll(target); err != nil {
		return "", err
	}
	if err := makeTarget(target, fd); err != nil {
		return "", err
	}
	return target, bind(fd, target, propagation)
}

// subPathTarget returns the place for the bind of a container's mount, and makes the folders above it.
func (m *Manager) subPathTarget(pod *v1.Pod, c *v1.Container, index int) (string, error) {
	dir, err := m.podDir(pod.UID)
	if err != nil {
		return "", err
	}
	for _, name := range []string{c.VolumeMounts[index].Name, c.Name} {
		if faults := validation.IsDNS1123Label(name); len(faults) > 0 {
			return "", fmt.Errorf("name %q is invalid: %s", name, strings.Join(faults, "; "))
		}
	}
	dir = filepath.Join(dir, subPathDirs, c.VolumeMounts[index].Name, c.Name)
	return filepath.Join(dir, strconv.Itoa(index)), os.MkdirAll(dir, 0o750)
}

// bind binds an open file or folder to a place. Only itself, as the kubelet does: what is mounted below
// it is not the pod's. Unless the container asks for it, mounts do not spread in either direction; without
// that, taking the bind away could unmount something of the node's.
func bind(fd int, target string, propagation runtimeapi.MountPropagation) error {
	if err := unix.Mount("/proc/self/fd/"+strconv.Itoa(fd), target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", target, err)
	}
	var flag uintptr
	switch propagation {
	case runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL:
		return nil
	case runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
		flag = unix.MS_SLAVE
	default:
		flag = unix.MS_PRIVATE
	}
	if err := unix.Mount("", target, "", flag, ""); err != nil {
		return errors.Join(fmt.Errorf("set propagation of %s: %w", target, err), unmountAll(target))
	}
	return nil
}

// isBoundTo reports whether a place is a mount of just what is open as fd.
func isBoundTo(target string, fd int) (bool, error) {
	var have, want unix.Stat_t
	if err := unix.Lstat(target, &have); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return false, nil
		}
		return false, &os.PathError{Op: "lstat", Path: target, Err: err}
	}
	if err := unix.Fstat(fd, &want); err != nil {
		return false, os.NewSyscallError("fstat", err)
	}
	if have.Dev != want.Dev || have.Ino != want.Ino {
		return false, nil
	}
	return isMountpoint(target)
}

// checkSubPath refuses a path that names a place out of its volume by itself.
func checkSubPath(sub string) error {
	switch {
	case filepath.IsAbs(sub):
		return fmt.Errorf("error SubPath `%s` must not be an absolute path", sub)
	case hasDotDot(sub):
		return fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", sub)
	case strings.ContainsRune(sub, 0):
		return fmt.Errorf("unable to provision SubPath %q: must not contain a NUL byte", sub)
	}
	return nil
}

// subPathStep names what failed with a sub-path, in the kubelet's words.
func subPathStep(err error) string {
	if errors.Is(err, errNotMade) || errors.Is(err, unix.ENOENT) {
		return "create subPath directory"
	}
	return "prepare subPath"
}

// makeTarget makes the file or folder onto which fd is bound.
func makeTarget(target string, fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
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
