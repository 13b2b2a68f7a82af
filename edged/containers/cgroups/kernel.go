package cgroups

import (
	"os"
	"path/filepath"

	"github.com/opencontainers/cgroups"
)

// Files of cgroup v2 that containers are given values for, and the one of v1 that shows that swap can be limited.
const (
	fileOOMGroup  = "memory.oom.group"
	fileSwapMax   = "memory.swap.max"
	fileSwapMaxV1 = "memory.memsw.limit_in_bytes"
)

// kernel is what the cgroups of this machine can do. A container that is given a value which its kernel has no file for
// does not start.
type kernel struct {
	// unified: there is cgroup v2 alone.
	unified bool
	// missing are the controllers, of cpu, memory and pids, that it does not offer.
	missing []string
	// swap: swap can be limited. Kernels of small devices are often built or booted without.
	swap bool
	// oomGroup: all processes of a container can be killed at once when its memory runs out.
	oomGroup bool
}

// probeKernel finds out what the kernel of this machine can do.
func probeKernel() kernel {
	self := ""
	if own, err := cgroups.ParseCgroupFile("/proc/self/cgroup"); err == nil {
		self = own[""]
	}
	return kernelAt(mountpoint, self, cgroups.IsCgroup2UnifiedMode())
}

// kernelAt finds out what the kernel can do from the cgroups mounted at mount, where the caller is in the one named
// self. The top of cgroup v2 has none of the files of the memory controller: any group below it shows them.
func kernelAt(mount, self string, unified bool) kernel {
	k := kernel{unified: unified, missing: missingControllers(mount)}
	if !unified {
		k.swap = exists(filepath.Join(mount, "memory", fileSwapMaxV1))
		return k
	}
	below := func(file string) bool {
		if self != "" && exists(filepath.Join(mount, self, file)) {
			return true
		}
		found, err := filepath.Glob(filepath.Join(mount, "*", file))
		return err == nil && len(found) > 0
	}
	k.swap, k.oomGroup = below(fileSwapMax), below(fileOOMGroup)
	return k
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// weight converts cpu shares into the weight of cgroup v2, linearly from [2, 262144] to [1, 10000], so that two groups
// keep the ratio of their requests. 0 stays 0: nothing is set.
func weight(shares uint64) uint64 {
	if shares == 0 {
		return 0
	}
	shares = min(max(shares, minShares), maxShares)
	return 1 + (shares-minShares)*9999/(maxShares-minShares)
}
