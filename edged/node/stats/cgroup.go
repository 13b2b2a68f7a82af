package stats

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/containers/cgroups"
)

// usage is what a cgroup uses, or a container without one: nil is not known.
type usage struct {
	at time.Time
	// cpu is in nanoseconds since the cgroup was made; nano is in billionths of a core, of late.
	cpu, nano *uint64
	// These are in bytes. limit and swapLimit are nil where there is none.
	memory, workingSet, rss, cache, limit, swap, swapLimit *uint64
	faults, majorFaults                                    *uint64
	// processes counts threads, too.
	processes             *uint64
	cpuPSI, memPSI, ioPSI *statsapi.PSIStats
}

// known reports whether anything was learned.
func (u *usage) known() bool { return u.cpu != nil || u.memory != nil }

// workingSet is what is in use without the files that have not been touched lately.
func workingSet(usage, inactive *uint64) *uint64 {
	if usage == nil {
		return nil
	}
	idle := ptr.Deref(inactive, 0)
	if idle > *usage {
		return new(uint64)
	}
	return ptr.To(*usage - idle)
}

// unlimited is from where on the kernel means that a v1 limit is none: the largest number of whole pages.
const unlimited = math.MaxInt64 - 1<<20

// limited is a limit, nil where it is none.
func limited(n *uint64) *uint64 {
	if n == nil || *n >= unlimited {
		return nil
	}
	return n
}

// read reads a file of a cgroup; "" where it is not there.
func read(dir, name string) string {
	if dir == "" {
		return ""
	}
	path := filepath.Join(dir, name)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "" // gone meanwhile, or a kernel without it
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	var buffer [4 << 10]byte              // most files are small: no memory but the result is taken
	for n := 0; n < len(buffer); {
		more, err := unix.Read(fd, buffer[n:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return ""
		case more == 0:
			return string(buffer[:n])
		}
		n += more
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(data)
}

// readCgroup reads what a cgroup uses.
func readCgroup(d *cgroups.Dirs) usage {
	if d.Unified != "" {
		return readUnified(d.Unified)
	}
	u := usage{at: time.Now()}
	u.cpu = number(read(d.Dir("cpuacct"), "cpuacct.usage"))
	mem := d.Dir("memory")
	if u.memory = number(read(mem, "memory.usage_in_bytes")); u.memory != nil {
		stat := table(read(mem, "memory.stat"))
		u.workingSet = workingSet(u.memory, entry(stat, "total_inactive_file"))
		u.rss, u.cache, u.swap = entry(stat, "total_rss"), entry(stat, "total_cache"), entry(stat, "total_swap")
		u.faults, u.majorFaults = entry(stat, "total_pgfault"), entry(stat, "total_pgmajfault")
		u.limit = limited(number(read(mem, "memory.limit_in_bytes")))
		// In v1 the limit is of memory and swap together.
		if both := limited(number(read(mem, "memory.memsw.limit_in_bytes"))); both != nil && u.limit != nil &&
			*both >= *u.limit {
			u.swapLimit = ptr.To(*both - *u.limit)
		}
	}
	u.processes = number(read(d.Dir("pids"), "pids.current"))
	return u
}

// MemoryUsage is the memory that a cgroup uses, in bytes; nil where it cannot be read.
func MemoryUsage(d *cgroups.Dirs) *uint64 {
	if d.Unified != "" {
		return number(read(d.Unified, "memory.current"))
	}
	return number(read(d.Dir("memory"), "memory.usage_in_bytes"))
}

func readUnified(dir string) usage {
	u := usage{at: time.Now()}
	if used := entry(table(read(dir, "cpu.stat")), "usage_usec"); used != nil {
		u.cpu = ptr.To(*used * 1000)
	}
	if u.memory = number(read(dir, "memory.current")); u.memory != nil {
		stat := table(read(dir, "memory.stat"))
		u.workingSet = workingSet(u.memory, entry(stat, "inactive_file"))
		u.rss, u.cache = entry(stat, "anon"), entry(stat, "file")
		u.faults, u.majorFaults = entry(stat, "pgfault"), entry(stat, "pgmajfault")
		u.limit = limited(number(read(dir, "memory.max")))
		u.swap, u.swapLimit = number(read(dir, "memory.swap.current")), limited(number(read(dir, "memory.swap.max")))
	}
	u.processes = number(read(dir, "pids.current"))
	u.cpuPSI, u.memPSI, u.ioPSI = pressure(read(dir, "cpu.pressure")), pressure(read(dir, "memory.pressure")),
		pressure(read(dir, "io.pressure"))
	return u
}

// mainDir is a folder of a cgroup in which the ones below can be listed: of v1 the first hierarchy that has it.
func mainDir(d *cgroups.Dirs) string {
	if d.Unified != "" {
		return d.Unified
	}
	for _, controller := range []string{"cpuacct", "memory", "pids", "cpu", "systemd"} {
		if dir := d.Of[controller]; dir != "" {
			if _, err := os.Stat(dir); err == nil {
				return dir
			}
		}
	}
	return ""
}

// below are the names of the cgroups below one: of a pod, those of its sandbox and containers.
func below(d *cgroups.Dirs) []string {
	dir := mainDir(d)
	if dir == "" {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// ofContainer finds the cgroup of a container among those of its pod: its id, or "cri-containerd-<id>.scope" and the
// like with systemd.
func ofContainer(names []string, id string) string {
	if id == "" {
		return ""
	}
	for _, name := range names {
		if name == id || strings.HasSuffix(name, "-"+id+".scope") {
			return name
		}
	}
	return ""
}

// podLinks reads the network counters of a pod through one of its processes. The process is asked for again afterwards:
// another one that was given its number meanwhile may have another network.
func podLinks(proc string, pod *cgroups.Dirs, names []string) []link {
	top := mainDir(pod)
	for _, name := range names {
		dir := filepath.Join(top, name)
		for pid := range strings.Lines(read(dir, "cgroup.procs")) {
			pid = strings.TrimSpace(pid)
			if n, err := strconv.Atoi(pid); err != nil || n <= 0 {
				break // a process of another namespace of processes
			}
			dev := read(filepath.Join(proc, pid, "net"), "dev")
			if dev != "" && strings.Contains("\n"+read(dir, "cgroup.procs"), "\n"+pid+"\n") {
				return links(dev)
			}
		}
	}
	return nil
}
