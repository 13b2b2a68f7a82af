// Package daemon starts, finds and ends long-lived processes for the test environment. A process is
// known by its pid and start time, so another program than the one that started it may end it.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/limit"
)

const pollInterval = 5 * time.Millisecond

// Within returns a context that ends after limit.Wait, scaled to this machine.
func Within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, Scaled(limit.Wait))
}

// Identity names a process for good: pids are reused, a pid with its start time is not.
type Identity struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot
}

// Identify returns the identity of a process that is there.
func Identify(pid int) (Identity, error) {
	start, _, err := readStat(filepath.Join("/proc", strconv.Itoa(pid)))
	return Identity{PID: pid, Start: start}, err
}

// Alive reports whether the process runs; one that has ended and waits to be reaped does not.
func (id Identity) Alive() bool {
	if id.PID <= 0 {
		return false
	}
	start, state, err := readStat(filepath.Join("/proc", strconv.Itoa(id.PID)))
	return err == nil && start == id.Start && !ended(state)
}

// Signal sends a signal. A process that has ended is no error.
func (id Identity) Signal(sig syscall.Signal) error {
	if !id.Alive() {
		return nil
	}
	if err := syscall.Kill(id.PID, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal process %d: %w", id.PID, err)
	}
	return nil
}

// Pause stops a process and returns when all its threads are stopped: kill(2) returns before that,
// and a thread that runs meanwhile can still answer.
func (id Identity) Pause(ctx context.Context) error {
	if err := id.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	ctx, cancel := Within(ctx)
	defer cancel()
	return Poll(ctx, func() error {
		if !id.Alive() {
			return Fatal(fmt.Errorf("process %d has ended", id.PID))
		}
		return id.stopped()
	})
}

// Resume ends what Pause began.
func (id Identity) Resume() error { return id.Signal(syscall.SIGCONT) }

// stopped tells of a thread that is not stopped.
func (id Identity) stopped() error {
	tasks := filepath.Join("/proc", strconv.Itoa(id.PID), "task")
	threads, err := os.ReadDir(tasks)
	if err != nil {
		return err
	}
	for _, thread := range threads {
		_, state, err := readStat(filepath.Join(tasks, thread.Name()))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return err
		}
		if !strings.Contains("TtZX", state) {
			return fmt.Errorf("thread %s of process %d (%s) is in state %s, not stopped", thread.Name(), id.PID,
				id.Command(), state)
		}
	}
	return nil
}

// Command returns the short name of the process's program.
func (id Identity) Command() string {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(id.PID), "comm"))
	if err != nil {
		return "ended"
	}
	return strings.TrimSpace(string(data))
}

// Fields of /proc/PID/stat, counted from the one behind the command.
const (
	statState   = 0
	statSession = 3
	statStart   = 19
)

// stat reads the fields of a process or a thread behind its command, from its folder below /proc.
func stat(folder string) ([]string, error) {
	data, err := os.ReadFile(filepath.Join(folder, "stat"))
	if err != nil {
		return nil, err
	}
	// The command may hold anything; the fields after it begin behind the last ")".
	text := string(data)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) <= statStart {
		return nil, fmt.Errorf("%s: unreadable stat", folder)
	}
	return fields, nil
}

// readStat returns the start time and the state of a process or a thread.
func readStat(folder string) (start uint64, state string, err error) {
	fields, err := stat(folder)
	if err != nil {
		return 0, "", err
	}
	start, err = strconv.ParseUint(fields[statStart], 10, 64)
	return start, fields[statState], err
}

// ended tells of a state whether it is that of a process that waits to be reaped.
func ended(state string) bool { return state == "Z" || state == "X" }

// Process is a daemon: started here, or only known.
type Process struct {
	Identity
	done chan struct{} // closed when a process started here has been reaped
}

// Start runs a program in a session of its own, its output appended to logFile. It is ended by End
// alone, not with any context.
func Start(logFile string, env []string, program string, args ...string) (*Process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	// It cannot be reaped before Wait, so its pid is its own here.
	id, err := Identify(cmd.Process.Pid)
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(done)
	}()
	if err != nil {
		return nil, errors.Join(err, cmd.Process.Kill())
	}
	return &Process{Identity: id, done: done}, nil
}

// Known returns the process of an identity that another program recorded; nil when it has ended.
func Known(id Identity) *Process {
	if !id.Alive() {
		return nil
	}
	return &Process{Identity: id}
}

// Running reports whether the process is there, stopped or not. A nil Process is not.
func (p *Process) Running() bool {
	if p == nil {
		return false
	}
	if p.done == nil {
		return p.Alive()
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// End sends sig, lets the process go on if it was stopped, and returns when it has ended.
func (p *Process) End(ctx context.Context, sig syscall.Signal) error {
	if !p.Running() {
		return nil
	}
	ctx, cancel := Within(ctx)
	defer cancel()
	if err := errors.Join(p.Signal(sig), p.Signal(syscall.SIGCONT)); err != nil {
		return err
	}
	return Poll(ctx, func() error {
		if p.Running() {
			return fmt.Errorf("process %d (%s) has not ended", p.PID, p.Command())
		}
		return nil
	})
}

// EndSession kills the process and all that it has started in its session, and returns when they have ended.
func (p *Process) EndSession(ctx context.Context) error {
	ctx, cancel := Within(ctx)
	defer cancel()
	return Poll(ctx, func() error {
		all, err := filepath.Glob("/proc/[0-9]*")
		if err != nil {
			return err
		}
		var left error
		for _, folder := range all {
			fields, err := stat(folder)
			if err != nil || fields[statSession] != strconv.Itoa(p.PID) || ended(fields[statState]) {
				continue // gone, or another's
			}
			pid, err := strconv.Atoi(filepath.Base(folder))
			if err != nil {
				return err
			}
			left = fmt.Errorf("process %d of the session of process %d has not ended", pid, p.PID)
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
		}
		return left
	})
}

// SlowdownEnv makes every wait and every limit longer, by a factor: for machines under emulation.
const SlowdownEnv = "EDGECORE_TEST_SLOWDOWN"

// Scaled is a limit on this machine.
func Scaled(d time.Duration) time.Duration {
	factor, err := strconv.ParseFloat(os.Getenv(SlowdownEnv), 64)
	if err != nil || factor < 1 {
		return d
	}
	return time.Duration(float64(d) * factor)
}

type fatalError struct{ error }

func (f fatalError) Unwrap() error { return f.error }

// Fatal makes an error that ends a Poll at once.
func Fatal(err error) error { return fatalError{err} }

// Poll calls check until it returns nil or a Fatal error, or the context ends.
func Poll(ctx context.Context, check func() error) error {
	return PollEvery(ctx, pollInterval, check)
}

// PollEvery is Poll with an interval between two checks of the caller's choice.
func PollEvery(ctx context.Context, interval time.Duration, check func() error) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		err := check()
		if stop := (fatalError{}); err == nil || errors.As(err, &stop) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}

// maxLine is how much of a line of a log is worth showing, in bytes.
const maxLine = 500

// Tail returns the last lines of a log. The middle of a long one is left out: the cause of an error is at its end.
func Tail(path string, lines int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(data)), "\n")
	last := all[max(0, len(all)-lines):]
	for i, line := range last {
		if len(line) > maxLine {
			last[i] = line[:maxLine/2] + " ... " + line[len(line)-maxLine/2:]
		}
	}
	return strings.Join(last, "\n")
}
