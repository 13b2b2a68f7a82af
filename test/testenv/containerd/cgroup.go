package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

const cgroupMount = "/sys/fs/cgroup"

// hierarchies are the cgroup trees of this machine: one with cgroup v2, one for each controller
// with v1.
func hierarchies() ([]string, error) {
	if _, err := os.Stat(filepath.Join(cgroupMount, "cgroup.procs")); err == nil {
		return []string{cgroupMount}, nil
	}
	entries, err := os.ReadDir(cgroupMount)
	if err != nil {
		return nil, fmt.Errorf("no cgroups on this machine: %w", err)
	}
	var all []string
	for _, e := range entries {
		if e.IsDir() { // not the links "cpu" and "cpuacct" to "cpu,cpuacct"
			all = append(all, filepath.Join(cgroupMount, e.Name()))
		}
	}
	return all, nil
}

// JoinCgroup moves a process into a cgroup of one hierarchy, so that it and whatever it starts can
// be found again.
func JoinCgroup(name string, pid int) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	// cgroup v1: cpuset would need to be set up first, and memory and cpu would change what is
	// measured.
	at := slices.IndexFunc(all, func(h string) bool {
		return h == cgroupMount || filepath.Base(h) == "pids" || filepath.Base(h) == "freezer"
	})
	if at < 0 {
		return fmt.Errorf("neither the pids nor the freezer cgroup is mounted in %s", cgroupMount)
	}
	dir := filepath.Join(all[at], name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644)
}

// MakeCgroup makes a cgroup in all hierarchies, with all processors and nodes of memory where those are to be named:
// for a program that wants it to be there, as a kubelet does.
func MakeCgroup(name string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		dir := filepath.Join(h, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if filepath.Base(h) != "cpuset" {
			continue
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(h, file))
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, file), value, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// cgroupsNamed lists the folders of the cgroup name in all hierarchies, children before parents.
func cgroupsNamed(name string) ([]string, error) {
	all, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, h := range all {
		err := filepath.WalkDir(filepath.Join(h, name), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // gone meanwhile
			}
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(dirs)
	slices.Reverse(dirs)
	return dirs, nil
}

// removeCgroups removes a cgroup with its children. The kernel refuses while a process in it is
// still on its way out.
func removeCgroups(name string) error {
	dirs, err := cgroupsNamed(name)
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove cgroup %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

// inCgroup reports whether a line of /proc/PID/cgroup lies in the cgroup name or below.
func inCgroup(line, name string) bool {
	parts := strings.SplitN(line, ":", 3)
	return len(parts) == 3 && (parts[2] == name || strings.HasPrefix(parts[2], name+"/"))
}

// cgroupTrees are where the instance's cgroups are: below its name, and where systemd makes them below a slice
// of that name, too.
func (i *Instance) cgroupTrees() []string {
	trees := []string{i.CgroupRoot()}
	if i.SystemdCgroup {
		trees = append(trees, "/"+i.slice())
	}
	return trees
}

// slice is the systemd form of CgroupRoot; a '-' in it would mean one level down.
func (i *Instance) slice() string { return strings.ReplaceAll(i.Name, "-", "_") + ".slice" }

// CgroupParent is the CRI cgroup_parent of a child of CgroupRoot, in the form of the instance's driver.
func (i *Instance) CgroupParent(child string) string {
	if i.SystemdCgroup {
		return strings.TrimSuffix(i.slice(), ".slice") + "-" + strings.ReplaceAll(child, "-", "_") + ".slice"
	}
	return i.CgroupRoot() + "/" + child
}

// PodCgroups lists the cgroups of the pods that an agent keeps below CgroupRoot.
func (i *Instance) PodCgroups() ([]string, error) {
	all, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var found []string
	for _, h := range all {
		for _, tree := range i.cgroupTrees() {
			for _, pattern := range []string{"kubepods/pod*", "kubepods/*/pod*", "*-kubepods.slice/*-pod*.slice",
				"*-kubepods.slice/*.slice/*-pod*.slice"} {
				dirs, err := filepath.Glob(filepath.Join(h, tree, pattern))
				if err != nil {
					return nil, err
				}
				found = append(found, dirs...)
			}
		}
	}
	return found, nil
}

// stopSlice has systemd forget the units of the instance.
func (i *Instance) stopSlice(ctx context.Context) error {
	if !i.SystemdCgroup {
		return nil
	}
	if out, err := exec.CommandContext(ctx, "systemctl", "stop", i.slice()).CombinedOutput(); err != nil {
		return fmt.Errorf("systemctl stop %s: %w: %s", i.slice(), err, out)
	}
	return nil
}
