package stats

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

// node is one sample of the node's CPU, memory and processes.
type node struct {
	usage
	capacity, available uint64
	swapTotal, swapFree uint64
	maxPIDs, cpus       uint64
	booted, began       time.Time
	links               []link
	defaultLink         string
	// pods is what all pods together use, agent what this process does.
	pods, agent usage
}

// readRoom samples what a node can be short of: memory and processes.
func (s *Stats) readRoom() (*node, error) {
	n := &node{usage: usage{at: time.Now()}, began: s.began}
	info := table(read(s.opts.Proc, "meminfo"))
	total, free := entry(info, "MemTotal"), entry(info, "MemFree")
	if total == nil || free == nil {
		return nil, fmt.Errorf("memory of the node: %s has no MemTotal and MemFree",
			filepath.Join(s.opts.Proc, "meminfo"))
	}
	const kib = 1024
	used := (*total - min(*free, *total)) * kib
	n.capacity, n.memory = *total*kib, &used
	n.workingSet = workingSet(&used, ptr.To(info["Inactive(file)"]*kib))
	n.available = n.capacity - *n.workingSet
	n.rss, n.cache = ptr.To(info["AnonPages"]*kib), ptr.To(info["Cached"]*kib)
	n.swapTotal, n.swapFree = info["SwapTotal"]*kib, info["SwapFree"]*kib
	n.swap = ptr.To(n.swapTotal - min(n.swapFree, n.swapTotal))
	n.processes = tasks(read(s.opts.Proc, "loadavg"))
	for _, limit := range []string{"pid_max", "threads-max"} {
		if most := number(read(filepath.Join(s.opts.Proc, "sys/kernel"), limit)); most != nil &&
			(n.maxPIDs == 0 || *most < n.maxPIDs) {
			n.maxPIDs = *most
		}
	}
	if s.opts.PodsCgroup != nil {
		if d, ok := s.opts.PodsCgroup(); ok {
			n.pods = readCgroup(&d)
		}
	}
	return n, nil
}

// readNode samples the node from /proc.
func (s *Stats) readNode() (*node, error) {
	n, err := s.readRoom()
	if err != nil {
		return nil, err
	}
	stat := read(s.opts.Proc, "stat")
	n.cpu = cpuTime(stat)
	n.cpus = processors(stat)
	if boot, ok := table(stat)["btime"]; ok {
		n.booted = time.Unix(int64(boot), 0)
	}
	vm := table(read(s.opts.Proc, "vmstat"))
	n.faults, n.majorFaults = entry(vm, "pgfault"), entry(vm, "pgmajfault")
	n.cpuPSI, n.memPSI, n.ioPSI = pressure(read(s.opts.Proc, "pressure/cpu")),
		pressure(read(s.opts.Proc, "pressure/memory")), pressure(read(s.opts.Proc, "pressure/io"))
	// The host's ends of pods' interfaces are theirs, and counted there.
	n.links = slices.DeleteFunc(links(read(s.opts.Proc, "net/dev")), func(l link) bool {
		return strings.HasPrefix(l.name, "veth")
	})
	n.defaultLink = defaultLink(read(s.opts.Proc, "net/route"))
	n.agent = readSelf(s.opts.Proc)
	n.nano, n.pods.nano, n.agent.nano = s.rates.addSample("/", &n.usage), s.rates.addSample("pods", &n.pods),
		s.rates.addSample("agent", &n.agent)
	return n, nil
}

// processors counts the CPUs in /proc/stat.
func processors(stat string) (n uint64) {
	for line := range strings.Lines(stat) {
		if strings.HasPrefix(line, "cpu") && !strings.HasPrefix(line, "cpu ") {
			n++
		}
	}
	return n
}

// readSelf samples this process.
func readSelf(proc string) usage {
	u := usage{at: time.Now()}
	var times unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &times); err == nil {
		u.cpu = ptr.To(uint64(times.Utime.Nano() + times.Stime.Nano()))
		u.faults, u.majorFaults = ptr.To(uint64(times.Minflt)), ptr.To(uint64(times.Majflt))
	}
	status := table(strings.ReplaceAll(read(proc, "self/status"), "\t", " "))
	const kib = 1024
	for name, to := range map[string]**uint64{"VmRSS": &u.memory, "RssAnon": &u.rss} {
		if n, ok := status[name]; ok {
			*to = ptr.To(n * kib)
		}
	}
	u.workingSet, u.processes = u.memory, entry(status, "Threads")
	return u
}

// readFS looks at the file system of a folder, or of the nearest one above that is there.
func readFS(path string) (FS, error) {
	for {
		var fs unix.Statfs_t
		err := unix.Statfs(path, &fs)
		if errors.Is(err, unix.ENOENT) && path != "/" {
			path = filepath.Dir(path)
			continue
		}
		if err != nil {
			return FS{}, fmt.Errorf("file system of %s: %w", path, err)
		}
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return FS{}, fmt.Errorf("file system of %s: %w", path, err)
		}
		block := uint64(fs.Frsize)
		if block == 0 {
			block = uint64(fs.Bsize)
		}
		return FS{
			Known:          true,
			Path:           path,
			Device:         uint64(st.Dev),
			CapacityBytes:  fs.Blocks * block,
			AvailableBytes: fs.Bavail * block,
			Inodes:         fs.Files,
			InodesFree:     fs.Ffree,
		}, nil
	}
}

// runtimeFS asks the runtime where images and containers lie, and looks at their file systems.
func (s *Stats) runtimeFS(ctx context.Context) (images, containers FS, err error) {
	answer, err := s.opts.Images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		return FS{}, FS{}, fmt.Errorf("file systems of the runtime: %w", err)
	}
	if images, err = oneFS(answer.GetImageFilesystems()); err != nil {
		return FS{}, FS{}, err
	}
	if len(answer.GetContainerFilesystems()) == 0 {
		return images, images, nil
	}
	containers, err = oneFS(answer.GetContainerFilesystems())
	return images, containers, err
}

func oneFS(list []*runtimeapi.FilesystemUsage) (FS, error) {
	if len(list) == 0 || list[0].GetFsId().GetMountpoint() == "" {
		return FS{}, errors.New("file systems of the runtime: it names none")
	}
	fs, err := readFS(list[0].GetFsId().GetMountpoint())
	fs.UsedBytes, fs.UsedInodes = list[0].GetUsedBytes().GetValue(), list[0].GetInodesUsed().GetValue()
	return fs, err
}
