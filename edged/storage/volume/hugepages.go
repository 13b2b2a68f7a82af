package volume

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// isHugePages reports whether a medium is HugePages, or HugePages-<size>.
func isHugePages(medium v1.StorageMedium) bool {
	return medium == v1.StorageMediumHugePages ||
		strings.HasPrefix(string(medium), string(v1.StorageMediumHugePagesPrefix))
}

// pageSize returns the size of the huge pages that an emptyDir of a pod is of: that of its medium, or the only one that
// containers of the pod ask for. It is pure.
func pageSize(pod *v1.Pod, medium v1.StorageMedium) (int64, error) {
	asked := hugePagesOf(pod)
	if medium == v1.StorageMediumHugePages {
		switch len(asked) {
		case 0:
			return 0,
				fmt.Errorf("medium %s: hugePages storage requested, but there is no resource request for huge pages",
					medium)
		case 1:
			return asked[0], nil
		}
		return 0,
			fmt.Errorf("medium: %s can't be used if container requests multiple huge page sizes; use HugePages-<size>",
				medium)
	}
	text := strings.TrimPrefix(string(medium), string(v1.StorageMediumHugePagesPrefix))
	size, err := resource.ParseQuantity(text)
	if err != nil || size.Value() <= 0 {
		return 0, fmt.Errorf("medium %s: %q is not a huge page size", medium, text)
	}
	if !slices.Contains(asked, size.Value()) {
		return 0, fmt.Errorf("medium %s: hugePages storage requested, but there is no resource request for huge pages",
			medium)
	}
	return size.Value(), nil
}

// hugePagesOf returns the sizes of the huge pages that a pod asks for, each once.
func hugePagesOf(pod *v1.Pod) []int64 {
	var sizes []int64
	add := func(list v1.ResourceList) {
		for name := range list {
			text, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix)
			if size, err := resource.ParseQuantity(text); ok && err == nil && !slices.Contains(sizes, size.Value()) {
				sizes = append(sizes, size.Value())
			}
		}
	}
	if pod.Spec.Resources != nil {
		add(pod.Spec.Resources.Requests)
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		add(c.Resources.Requests)
		add(c.Resources.Limits) // a limit without a request is one
	}
	return sizes
}

// setupHugePages mounts a hugetlbfs.
func (m *Manager) setupHugePages(pod *v1.Pod, dir string, src *v1.EmptyDirVolumeSource) error {
	size, err := pageSize(pod, src.Medium)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o750); err != nil && !os.IsExist(err) {
		return err
	}
	if mounted, err := isMountpoint(dir); err != nil || mounted {
		return err
	}
	mode, gid := emptyDirAccess(src, fsGroup(pod))
	// Its size is not set: a pod that exceeds a sizeLimit is evicted, as on the disk.
	options := tmpfs{mode: mode, gid: gid}.options() + fmt.Sprintf(",pagesize=%d", size)
	err = unix.Mount("nodev", dir, "hugetlbfs", 0, options)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("medium %s: this node has no huge pages of %s: %w", src.Medium,
			resource.NewQuantity(size, resource.BinarySI), err)
	}
	if err != nil {
		return fmt.Errorf("mount hugetlbfs on %s: %w", dir, err)
	}
	if err := os.Chmod(dir, mode); err != nil { // its mount option takes no setgid
		return errors.Join(err, unmountAll(dir))
	}
	return nil
}
