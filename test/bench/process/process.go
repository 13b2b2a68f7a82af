// Package process reads what a process uses from /proc.
package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Usage returns the processor time of a process, and what it had written to the disk.
func Usage(pid int) (cpu time.Duration, written int64, err error) {
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
		first, _, _ := strings.Cut(string(data), " ")
		ns, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return 0, 0, err
		}
		cpu += time.Duration(ns)
	}
	written, err = field(fmt.Sprintf("/proc/%d/io", pid), "write_bytes:")
	return cpu, written, err
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
