package differential

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// addInside adds what the processes of a pod's running containers see to a trace, below inside/STEP/CONTAINER. A
// container whose process ends meanwhile adds nothing.
func (s *Side) addInside(ctx context.Context, t Trace, step string, pod *v1.Pod, names Names) error {
	list, err := s.CRI.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State:         &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		LabelSelector: map[string]string{"io.kubernetes.pod.uid": string(pod.UID)},
	}})
	if err != nil {
		return err
	}
	for _, c := range list.GetContainers() {
		status, err := s.CRI.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{
			ContainerId: c.GetId(), Verbose: true,
		})
		if err != nil {
			return err
		}
		var info struct {
			PID int `json:"pid"`
		}
		if err := json.Unmarshal([]byte(status.GetInfo()["info"]), &info); err != nil {
			return fmt.Errorf("read the process of container %s: %w", c.GetMetadata().GetName(), err)
		}
		seen := Trace{}
		in := inspection{
			trace:  seen,
			prefix: "inside/" + step + "/" + c.GetMetadata().GetName() + "/",
			names:  names,
			side:   s,
		}
		if err := in.process(info.PID); hasEnded(info.PID) {
			continue
		} else if err != nil {
			return fmt.Errorf("inspect container %s: %w", c.GetMetadata().GetName(), err)
		}
		maps.Copy(t, seen)
	}
	return nil
}

// hasEnded reports whether a process is gone, or waits for its parent.
func hasEnded(pid int) bool {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return true
	}
	_, state, _ := strings.Cut(string(data), ") ")
	return strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X")
}

// inspection looks at one process.
type inspection struct {
	trace  Trace
	prefix string
	names  Names
	side   *Side
}

func (in inspection) add(path, value string) {
	in.trace.Add(in.prefix+in.names.Replace(path), in.names.Replace(value))
}

func (in inspection) process(pid int) error {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	return errors.Join(
		in.environment(proc),
		in.identity(proc),
		in.limits(proc),
		in.mounts(proc),
		in.cgroups(proc),
		in.files(filepath.Join(proc, "root")),
	)
}

func (in inspection) environment(proc string) error {
	data, err := os.ReadFile(filepath.Join(proc, "environ"))
	if err != nil {
		return err
	}
	for variable := range strings.SplitSeq(strings.Trim(string(data), "\x00"), "\x00") {
		name, value, _ := strings.Cut(variable, "=")
		in.add("env/"+name, value)
	}
	return nil
}

// identity is the user, the groups, the capabilities and the filters of the process.
func (in inspection) identity(proc string) error {
	data, err := os.ReadFile(filepath.Join(proc, "status"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch key {
		case "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp",
			"Seccomp_filters":
			in.add("identity/"+key, strings.Join(strings.Fields(value), " "))
		}
	}
	for _, file := range []string{"oom_score_adj", "uid_map", "gid_map"} {
		data, err := os.ReadFile(filepath.Join(proc, file))
		if err != nil {
			return err
		}
		in.add("identity/"+file, strings.Join(strings.Fields(string(data)), " "))
	}
	for _, link := range []string{"cwd"} {
		target, err := os.Readlink(filepath.Join(proc, link))
		if err != nil {
			return err
		}
		in.add("identity/"+link, target)
	}
	return nil
}

func (in inspection) limits(proc string) error {
	data, err := os.ReadFile(filepath.Join(proc, "limits"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		if len(line) > 26 && strings.HasPrefix(line, "Max ") {
			in.add("limits/"+strings.TrimSpace(line[:26]), strings.Join(strings.Fields(line[26:]), " "))
		}
	}
	return nil
}

// mounts are those of the container, each with its options, by mount point.
func (in inspection) mounts(proc string) error {
	data, err := os.ReadFile(filepath.Join(proc, "mountinfo"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		// ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [shared:N master:N] - TYPE SOURCE SUPEROPTIONS
		before, after, found := strings.Cut(strings.TrimSpace(line), " - ")
		fields, rest := strings.Fields(before), strings.Fields(after)
		if !found || len(fields) < 6 || len(rest) < 3 {
			return fmt.Errorf("%s/mountinfo has the line %q", proc, line)
		}
		var propagation []string
		for _, tag := range fields[6:] {
			kind, _, _ := strings.Cut(tag, ":")
			propagation = append(propagation, kind)
		}
		value := fmt.Sprintf("root=%s options=%s propagation=%s type=%s", fields[3], fields[5], propagation, rest[0])
		if rest[0] == "tmpfs" {
			value += " tmpfs=" + tmpfsOptions(rest[2])
		}
		if strings.HasPrefix(fields[4], "/sys/fs/cgroup/") {
			value = "options=" + fields[5] // its root is the container's cgroup, which has the container's ID
		}
		if fields[4] == "/" {
			value = "options=" + fields[5] + " type=" + rest[0]
		}
		in.add("mounts/"+fields[4], value)
	}
	return nil
}

// tmpfsOptions returns the options of a tmpfs without the mode and the owner that it was mounted with: those of its top
// folder are compared, which may have been changed since.
func tmpfsOptions(options string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(options, ","), func(option string) bool {
		name, _, _ := strings.Cut(option, "=")
		return name == "mode" || name == "uid" || name == "gid"
	}), ",")
}

// cgroupFiles are the settings that an agent or a runtime makes, of cgroup v1 and v2.
var cgroupFiles = []string{
	"cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpuset.cpus", "cpuset.mems", "memory.limit_in_bytes",
	"memory.memsw.limit_in_bytes",
	"memory.soft_limit_in_bytes", "memory.swappiness", "memory.oom_control", "pids.max", "devices.list",
	"cpu.max", "cpu.weight", "memory.max", "memory.min", "memory.low", "memory.high", "memory.swap.max",
	"memory.oom.group",
}

// cgroups are the settings of the container's cgroups and of all those above, up to the node's.
func (in inspection) cgroups(proc string) error {
	data, err := os.ReadFile(filepath.Join(proc, "cgroup"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			return fmt.Errorf("%s/cgroup has the line %q", proc, line)
		}
		root := in.side.Containerd.CgroupRoot()
		if !strings.HasPrefix(parts[2], root+"/") {
			continue // a hierarchy without a controller
		}
		if strings.Contains(parts[1], "name=") {
			continue
		}
		in.add("cgroup/"+parts[1], parts[2])
		// Up to and with the cgroup of a class of pods: what is above depends on all pods of the node.
		for path := parts[2]; path != root && !strings.HasSuffix(path, "/kubepods"); path = filepath.Dir(path) {
			if base := filepath.Base(path); base == "burstable" || base == "besteffort" {
				break
			}
			for _, file := range cgroupFiles {
				value, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", parts[1], path, file))
				if errors.Is(err, fs.ErrNotExist) {
					continue
				}
				if err != nil {
					return err
				}
				in.add("cgroup/"+filepath.Base(path)+"/"+file, strings.Join(strings.Fields(string(value)), " "))
			}
			hugepages, err := filepath.Glob(filepath.Join("/sys/fs/cgroup", parts[1], path, "hugetlb.*.limit_in_bytes"))
			if err != nil {
				return err
			}
			for _, file := range hugepages {
				value, err := os.ReadFile(file)
				if err != nil {
					return err
				}
				in.add("cgroup/"+filepath.Base(path)+"/"+filepath.Base(file), strings.TrimSpace(string(value)))
			}
		}
	}
	return nil
}

// maxContent is the size up to which the content of a file is compared, in bytes.
const maxContent = 4096

// files are the files that an agent makes in a container: those of its volumes, and those in /etc and /dev.
func (in inspection) files(root string) error {
	for _, file := range []string{"etc/hosts", "etc/hostname", "etc/resolv.conf", "dev/termination-log"} {
		if err := in.file(filepath.Join(root, file), "/"+file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	points, err := in.volumeMounts(filepath.Dir(root))
	if err != nil {
		return err
	}
	for _, point := range points {
		top := filepath.Join(root, point)
		err := filepath.WalkDir(top, func(path string, _ fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			return in.file(path, strings.TrimPrefix(path, root))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// volumeMounts are the mount points of a process whose files are in the agent's root folder, or in a tmpfs that is
// mounted below it.
func (in inspection) volumeMounts(proc string) ([]string, error) {
	f, err := os.Open(filepath.Join(proc, "mountinfo"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var points []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		point := fields[4]
		agents := strings.Contains(fields[3], "/volumes/") || strings.Contains(fields[3], "/volume-subpaths/")
		tmpfs := strings.Contains(lines.Text(), " - tmpfs ") && !strings.HasPrefix(point, "/dev") &&
			!strings.HasPrefix(point, "/proc") && !strings.HasPrefix(point, "/sys")
		if agents || tmpfs {
			points = append(points, point)
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(points))), nil
}

func (in inspection) file(path, name string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s has no owner", path)
	}
	value := fmt.Sprintf("%s %d:%d", info.Mode(), stat.Uid, stat.Gid)
	switch {
	case info.Mode().IsRegular() && info.Size() <= maxContent:
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		value += fmt.Sprintf(" %q", in.names.Replace(string(bytes.TrimRight(data, "\x00"))))
	case info.Mode().IsRegular():
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		value += fmt.Sprintf(" %d bytes %x", len(data), sha256.Sum256(data))[:40]
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		value += " -> " + target
	}
	in.add("files"+name, value)
	return nil
}
