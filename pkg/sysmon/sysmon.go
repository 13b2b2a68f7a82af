// Package sysmon has the thread with which Go's runtime monitors itself wake less often. A program that has little to
// do, again and again, spends much of its processor time on that thread: whenever the program wakes, it sleeps 50 times
// for 20 µs, then longer, up to 10 ms. The kernel may lengthen each of these sleeps by the thread's timer slack.
//
// The thread notices processors (GOMAXPROCS) whose goroutine is blocked in a system call or in C, and has another
// thread use them; and goroutines that have run for 10 ms. With a longer slack it notices them later. Threads that it
// starts inherit the slack, so timers of the program may be late by the slack, too.
package sysmon

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// SetSlack sets the timer slack of the monitoring thread of this program. Linux' default is 50 µs. It needs
// CAP_SYS_NICE.
func SetSlack(slack time.Duration) error {
	tid, err := thread()
	if err != nil {
		return fmt.Errorf("find the thread that monitors Go's runtime: %w", err)
	}
	return os.WriteFile(slackFile(tid), strconv.AppendInt(nil, slack.Nanoseconds(), 10), 0)
}

// slackFile is where the kernel has a thread's timer slack: not in the folder of the process' threads.
func slackFile(tid int) string { return fmt.Sprintf("/proc/%d/timerslack_ns", tid) }

// thread returns the monitoring thread: the runtime starts it before all other threads.
func thread() (tid int, err error) {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 0, err
	}
	var tids []int
	for _, e := range entries {
		tid, err := strconv.Atoi(e.Name())
		if err != nil {
			return 0, err
		}
		tids = append(tids, tid)
	}
	text, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		return 0, err
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, err
	}
	return second(tids, os.Getpid(), limit)
}

// second returns the second thread of a process; the first one has the ID of the process. The kernel gives out IDs in
// order. After limit, it starts again with low ones. It is pure.
func second(tids []int, pid, limit int) (tid int, err error) {
	tids = slices.DeleteFunc(slices.Clone(tids), func(tid int) bool { return tid == pid })
	if len(tids) == 0 {
		return 0, errors.New("there is one thread only")
	}
	since := func(tid int) int { return (tid - pid + limit) % limit }
	return slices.MinFunc(tids, func(a, b int) int { return cmp.Compare(since(a), since(b)) }), nil
}
