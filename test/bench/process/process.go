// Package process reads what a process uses from /proc.
package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Usage returns the processor time of a process, and what it had written to the disk.
func Usage(pid int) (cpu time.Duration, written int64, err error) {
	if cpu, _, err = Scheduled(pid); err != nil {
		return 0, 0, err
	}
	written, err = field(fmt.Sprintf("/proc/%d/io", pid), "write_bytes:")
	return cpu, written, err
}

// Scheduled returns the processor time of a process, and how long its threads waited for a processor though they could
// have run: what a busy machine does to it.
func Scheduled(pid int) (cpu, waited time.Duration, err error) {
	// In nanoseconds, where /proc/PID/stat has hundredths of a second.
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(tasks) == 0 {
		return 0, 0, fmt.Errorf("processor time of %d: %w", pid, err)
	}
	for _, t := range tasks {
		data, err := os.ReadFile(t)
		if err != nil {
			continue // the thread has ended
		}
		var ran, waiting int64
		if _, err := fmt.Sscan(string(data), &ran, &waiting); err != nil {
			return 0, 0, fmt.Errorf("read %s: %w", t, err)
		}
		cpu += time.Duration(ran)
		waited += time.Duration(waiting)
	}
	return cpu, waited, nil
}

// Memory returns resident and anonymous memory in bytes.
func Memory(pid int) (rss, anon int64, err error) {
	path := fmt.Sprintf("/proc/%d/status", pid)
	if rss, err = field(path, "VmRSS:"); err != nil {
		return 0, 0, err
	}
	anon, err = field(path, "RssAnon:")
	return rss * 1024, anon * 1024, err
}

// Uncache removes a file from the kernel's page cache, so that a program is read from the disk when it starts, as after
// a boot. A program that was just linked may be cached in huge pages. If one byte of a huge page is used, all of the
// page counts as resident memory. Pages that a process has mapped stay.
func Uncache(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil { // pages that are not on the disk yet would stay
		return err
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("remove %s from the page cache: %w", path, err)
	}
	return nil
}

// Peak returns the largest resident memory of a process since it started or since ResetPeak, in bytes.
func Peak(pid int) (int64, error) {
	peak, err := field(fmt.Sprintf("/proc/%d/status", pid), "VmHWM:")
	return peak * 1024, err
}

// ResetPeak makes Peak count from now.
func ResetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// PSS returns the proportional set size in bytes: a page that n processes share counts as 1/n of a page.
func PSS(pid int) (int64, error) {
	pss, err := field(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss:")
	return pss * 1024, err
}

// tick is the unit of /proc/stat (USER_HZ), which is the same on all Linux platforms of Go.
const tick = 10 * time.Millisecond

// Busy returns the time since the machine started in which processors were not idle, summed over all processors.
func Busy() (time.Duration, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return busy(string(data))
}

// busy reads the first line of /proc/stat: user, nice, system, idle, iowait, irq and softirq. The fields after those
// belong to another machine, or are included in these.
func busy(stat string) (time.Duration, error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "cpu" {
		return 0, fmt.Errorf("read /proc/stat: its first line is %q, want cpu and 7 numbers", line)
	}
	var sum time.Duration
	for i, text := range fields[1:8] {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read /proc/stat: %w", err)
		}
		if i != 3 && i != 4 { // idle and iowait
			sum += time.Duration(n) * tick
		}
	}
	return sum, nil
}

// field reads a number from a file of "name value" lines.
func field(path, name string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", path, name)
}
