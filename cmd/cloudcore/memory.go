package main

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/edgecore-io/edgecore/pkg/footprint"
)

const (
	// gcPercent keeps the heap closer to what thousands of links at rest need, for a little more work when they come.
	// Less than that changes nothing: what is left is the room between objects.
	gcPercent = 50
	// memoryShare is the share of the memory cgroup, in percent, that the Go runtime may use before it collects garbage
	// more often. The rest is for the kernel's socket buffers, which count for the cgroup, too.
	memoryShare = 85
)

// limitMemory sets up the garbage collector, unless the environment does. With a memory limit, a burst makes it work
// more instead of having the kernel kill the process.
func limitMemory(root string) {
	footprint.Tune(footprint.Tuning{GCPercent: gcPercent})
	if limit := cgroupLimit(root); limit > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit / 100 * memoryShare)
	}
}

// cgroupLimit returns the lowest memory limit of this process's cgroup and those above it, in bytes; 0 is none, or that
// it is not known. root is the root of the file system.
func cgroupLimit(root string) (lowest int64) {
	text, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return 0
	}
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		// ID:CONTROLLERS:PATH, as in cgroups(7). The path is the host's; in a container the mount shows its own cgroup.
		parts := strings.SplitN(s.Text(), ":", 3)
		if len(parts) < 3 {
			continue
		}
		mount, file := "sys/fs/cgroup", "memory.max"
		if parts[1] == "memory" {
			mount, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		} else if parts[1] != "" {
			continue
		}
		for path := filepath.Clean("/" + parts[2]); ; path = filepath.Dir(path) {
			limit := readLimit(filepath.Join(root, mount, path, file))
			if limit > 0 && (lowest == 0 || limit < lowest) {
				lowest = limit
			}
			if path == "/" {
				break
			}
		}
	}
	return lowest
}

// unlimited is more than any machine has. A cgroup v1 without a limit has 2^63 less a page.
const unlimited = 1 << 60

func readLimit(file string) int64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64) // not for "max"
	if err != nil || limit >= unlimited {
		return 0
	}
	return limit
}
