package clock

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ticks is how many of the units in which the kernel tells times of processes make a second, on every Linux.
const ticks = 100

// ProcessAge returns the age of a process by the boot clock, which cannot be set.
func ProcessAge(pid int) (time.Duration, error) {
	if pid <= 0 {
		return 0, fmt.Errorf("age of process %d: there is no such process", pid)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("age of process %d: %w", pid, err)
	}
	began, err := parseStart(stat)
	if err != nil {
		return 0, fmt.Errorf("age of process %d: %w", pid, err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0, fmt.Errorf("boot clock: %w", err)
	}
	return max(time.Duration(now.Nano())-began, 0), nil
}

// parseStart reads when after the boot a process began, which is the 22nd field of /proc/PID/stat. The second is a name
// in brackets, in which anything may be.
func parseStart(stat []byte) (time.Duration, error) {
	end := bytes.LastIndexByte(stat, ')')
	fields := strings.Fields(string(stat[end+1:]))
	const at = 22 - 3 // the first field after the name is the third
	if end < 0 || len(fields) <= at {
		return 0, fmt.Errorf("stat has %d fields after the name", len(fields))
	}
	n, err := strconv.ParseInt(fields[at], 10, 64)
	if err != nil || n < 0 || n > int64(1<<62/(time.Second/ticks)) {
		return 0, fmt.Errorf("%q is not a time", fields[at])
	}
	return time.Duration(n) * (time.Second / ticks), nil
}
