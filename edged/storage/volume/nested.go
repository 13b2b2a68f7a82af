package volume

import (
	"errors"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// nestedMode is the mode of a folder for a nested mount.
const nestedMode = 0o755

// nestedMounts returns where, within a volume, containers of a pod mount other volumes: relative paths, each once, and
// none below another one of the same container. It is pure.
func nestedMounts(pod *v1.Pod, volume string) []string {
	var out []string
	for c := range containers(pod) {
		var all, own []string
		for i := range c.mounts {
			target := path.Clean("/" + c.mounts[i].MountPath)
			all = append(all, target)
			if c.mounts[i].Name == volume {
				own = append(own, target)
			}
		}
		slices.Sort(all)
		for _, root := range own {
			out = append(out, below(root, all)...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// below returns the sorted paths that are below a root, relative to it, without those that are below another one.
func below(root string, paths []string) []string {
	if root == "/" {
		return nil
	}
	var out []string
	for _, p := range paths {
		rel, ok := strings.CutPrefix(p, root+"/")
		if ok && !slices.ContainsFunc(out, func(above string) bool {
			return rel == above || strings.HasPrefix(rel, above+"/")
		}) {
			out = append(out, rel)
		}
	}
	return out
}

// makeNested makes the folders for nested mounts in a volume that the agent fills: containers see it read-only, so that
// the runtime cannot make them. What has such a name already stays: links of a volume that an older agent filled.
func makeNested(dir string, nested []string, group *int64) error {
	for _, rel := range nested {
		fd, err := openBeneath(dir, rel, folderAccess{mode: filesFolderMode(nestedMode, group), group: group})
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return err
		}
		unix.Close(fd)
	}
	return nil
}
