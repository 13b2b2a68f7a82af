package stats

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"
)

// What was sampled, in the words of the kubelet's stats API. What is not known is left out.

func cpuStats(u *usage) *statsapi.CPUStats {
	return &statsapi.CPUStats{
		Time:                 metav1.NewTime(u.at),
		UsageNanoCores:       u.nano,
		UsageCoreNanoSeconds: u.cpu,
		PSI:                  u.cpuPSI,
	}
}

func memoryStats(u *usage) *statsapi.MemoryStats {
	out := &statsapi.MemoryStats{
		Time:            metav1.NewTime(u.at),
		UsageBytes:      u.memory,
		WorkingSetBytes: u.workingSet,
		RSSBytes:        u.rss,
		PageFaults:      u.faults,
		MajorPageFaults: u.majorFaults,
		PSI:             u.memPSI,
	}
	if u.limit != nil && u.workingSet != nil {
		out.AvailableBytes = ptr.To(*u.limit - min(*u.workingSet, *u.limit))
	}
	return out
}

func swapStats(u *usage) *statsapi.SwapStats {
	out := &statsapi.SwapStats{Time: metav1.NewTime(u.at), SwapUsageBytes: u.swap}
	if u.swapLimit != nil && u.swap != nil {
		out.SwapAvailableBytes = ptr.To(*u.swapLimit - min(*u.swap, *u.swapLimit))
	}
	return out
}

func ioStats(u *usage) *statsapi.IOStats {
	if u.ioPSI == nil {
		return nil
	}
	return &statsapi.IOStats{Time: metav1.NewTime(u.at), PSI: u.ioPSI}
}

// networkStats are the interfaces, with the one of the default route in front.
func networkStats(at time.Time, list []link, first string) *statsapi.NetworkStats {
	out := &statsapi.NetworkStats{Time: metav1.NewTime(at)}
	for _, l := range list {
		one := statsapi.InterfaceStats{
			Name:     l.name,
			RxBytes:  &l.rxBytes,
			RxErrors: &l.rxErrors,
			TxBytes:  &l.txBytes,
			TxErrors: &l.txErrors,
		}
		out.Interfaces = append(out.Interfaces, one)
		if l.name == first {
			out.InterfaceStats = one
		}
	}
	return out
}

// fsStats is a file system without what is used of it.
func fsStats(at time.Time, fs *FS) *statsapi.FsStats {
	out := &statsapi.FsStats{Time: metav1.NewTime(at)}
	if fs.Known {
		out.CapacityBytes, out.AvailableBytes = &fs.CapacityBytes, &fs.AvailableBytes
		out.Inodes, out.InodesFree = &fs.Inodes, &fs.InodesFree
	}
	return out
}

// usedFS is a file system with what the runtime says it has of it.
func usedFS(at time.Time, fs *FS) *statsapi.FsStats {
	out := fsStats(at, fs)
	out.UsedBytes, out.InodesUsed = &fs.UsedBytes, &fs.UsedInodes
	return out
}

// takes is a file system with what something takes of it.
func takes(at time.Time, fs *FS, d Disk) *statsapi.FsStats {
	out := fsStats(at, fs)
	out.UsedBytes, out.InodesUsed = &d.Bytes, &d.Inodes
	return out
}
