// A longer timer slack has the thread with which Go's runtime monitors itself wake less often. A program that has
// little to do, again and again, spends much of its processor time on that thread: whenever the program wakes, it
// sleeps 50 times for 20 µs, then longer, up to 10 ms. The kernel may lengthen each of these sleeps by the thread's
// timer slack.
//
// SetSlack concerns that thread alone, Restart all threads of a program.
//
// The thread notices processors (GOMAXPROCS) whose goroutine is blocked in a system call or in C, and has another
// thread use them; and goroutines that have run for 10 ms. With a longer slack it notices them later. Threads that it
// starts inherit the slack, so timers of the program may be late by the slack, too.

package footprint

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// SetSlack sets the timer slack of the monitoring thread of this program. Linux' default is 50 µs. It needs
// CAP_SYS_NICE.
func SetSlack(slack time.Duration) error {
	if Off() {
		return nil
	}
	tid, err := thread()
	if err != nil {
		return fmt.Errorf("find the thread that monitors Go's runtime: %w", err)
	}
	return os.WriteFile(slackFile(tid), strconv.AppendInt(nil, slack.Nanoseconds(), 10), 0)
}

// restarted is the environment variable of a program that Restart has started.
const restarted = "EDGECORE_RESTARTED_FOR_TIMER_SLACK"

// Restart replaces this program with itself, once, so that all of its threads have a timer slack: the monitoring thread
// is there before the program can set one. Unlike SetSlack, Restart needs no capability, but it delays all timers. The
// process, its arguments and its environment stay the same. Call Restart first in main: what the program has done
// before is done again. It returns nil in a program that was restarted, or that was started with such a slack, or if
// the package is switched off; an error if the program cannot be restarted, which can go on then.
func Restart(slack time.Duration) error {
	if os.Getenv(restarted) != "" {
		return os.Unsetenv(restarted)
	}
	if Off() {
		return nil
	}
	runtime.LockOSThread() // the thread that calls exec passes on its slack
	defer runtime.UnlockOSThread()
	have, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("get the timer slack: %w", err)
	}
	if have >= int(slack) {
		return nil
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return fmt.Errorf("get the limit of open files: %w", err)
	}
	program, err := os.Executable() // not /proc/self/exe, which would be the name of the process
	if err != nil {
		return err
	}
	if err := setOwnSlack(int(slack)); err != nil {
		return err
	}
	err = unix.Exec(program, os.Args, append(os.Environ(), restarted+"=1"))
	// The program goes on. Exec has lowered the limit of open files to what it was before Go raised it.
	return errors.Join(fmt.Errorf("start %s again: %w", program, err), setOwnSlack(have),
		unix.Setrlimit(unix.RLIMIT_NOFILE, &files))
}

// setOwnSlack sets the timer slack of the calling thread, in ns.
func setOwnSlack(ns int) error {
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(ns), 0, 0, 0); err != nil {
		return fmt.Errorf("set the timer slack: %w", err)
	}
	return nil
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
