package node

import (
	"bufio"
	"os"
	goruntime "runtime"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// System returns what is known of the machine. What cannot be read is empty.
func System(version string) v1.NodeSystemInfo {
	info := v1.NodeSystemInfo{
		MachineID:       line("/etc/machine-id"),
		SystemUUID:      line("/sys/class/dmi/id/product_uuid"),
		BootID:          line("/proc/sys/kernel/random/boot_id"),
		OSImage:         osImage("/etc/os-release"),
		OperatingSystem: goruntime.GOOS,
		Architecture:    goruntime.GOARCH,
		KubeletVersion:  version,
	}
	if info.SystemUUID == "" {
		info.SystemUUID = info.MachineID // boards without a BIOS
	}
	if swap := SwapCapacity(); swap > 0 {
		info.Swap = &v1.NodeSwapStatus{Capacity: &swap}
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		info.KernelVersion = unix.ByteSliceToString(name.Release[:])
	}
	return info
}

// SwapCapacity is the machine's swap, in bytes; 0 where it has none, or does not say.
func SwapCapacity() int64 {
	swap, err := memInfo("/proc/meminfo", "SwapTotal")
	if err != nil {
		return 0
	}
	return swap
}

func line(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// osImage reads the name of the system.
func osImage(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if name, ok := strings.CutPrefix(lines.Text(), "PRETTY_NAME="); ok {
			return strings.Trim(name, `"'`)
		}
	}
	return ""
}
