package containerd

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

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const pollInterval = 5 * time.Millisecond

// identity names a process for good: pids are reused, a pid with its start time is not.
type identity struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot
}

func identify(pid int) (identity, error) {
	start, _, err := readStat(pid)
	return identity{PID: pid, Start: start}, err
}

// alive tells whether the process runs; one that has ended and waits to be reaped does not.
func (id identity) alive() bool {
	if id.PID <= 0 {
		return false
	}
	start, state, err := readStat(id.PID)
	return err == nil && start == id.Start && state != "Z" && state != "X"
}

func (id identity) signal(sig syscall.Signal) error {
	if !id.alive() {
		return nil
	}
	if err := syscall.Kill(id.PID, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal process %d: %w", id.PID, err)
	}
	return nil
}

// readStat returns the start time and the state of a process.
func readStat(pid int) (start uint64, state string, err error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, "", err
	}
	// The command may hold anything; the fields after it begin behind the last ")".
	_, rest, found := strings.Cut(string(data[strings.LastIndexByte(string(data), ')'):]), ") ")
	fields := strings.Fields(rest)
	if !found || len(fields) < 20 {
		return 0, "", fmt.Errorf("process %d: unreadable stat", pid)
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return start, fields[0], err
}

// process is the daemon: started here (done is closed when it ended), or only known.
type process struct {
	identity
	done chan struct{}
}

func (p *process) exited() bool {
	if p.done == nil {
		return !p.alive()
	}
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Run starts the daemon of an instance whose daemon does not run, and waits until its CRI answers.
func (i *Instance) Run(ctx context.Context) error {
	if i.Running() {
		return fmt.Errorf("containerd %s runs already", i.Name)
	}
	log, err := os.OpenFile(i.LogFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	// Not CommandContext: the daemon ends by Stop, not with the context of its start.
	cmd := exec.Command(i.Binary, "--config", i.configFile())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(i.Binary)+":"+os.Getenv("PATH")+":/usr/local/sbin:/usr/sbin:/sbin")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(done)
	}()
	id, err := identify(cmd.Process.Pid)
	if err != nil {
		return errors.Join(err, cmd.Process.Kill())
	}
	i.proc, i.Process = &process{identity: id, done: done}, id
	if err := joinCgroup(filepath.Join(i.CgroupRoot(), "runtime"), id.PID); err != nil {
		return err
	}
	if err := i.save(); err != nil {
		return err
	}
	return i.waitReady(ctx)
}

// waitReady returns when the runtime and its network are ready.
func (i *Instance) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	client, err := i.Dial()
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	return poll(ctx, func() error {
		if i.proc.exited() {
			return fatal(fmt.Errorf("containerd ended at once; the end of %s:\n%s", i.LogFile(), tail(i.LogFile())))
		}
		status, err := client.Status(ctx, &runtimeapi.StatusRequest{})
		if err != nil {
			return err
		}
		for _, c := range status.GetStatus().GetConditions() {
			if !c.GetStatus() {
				return fmt.Errorf("condition %s is false: %s", c.GetType(), c.GetMessage())
			}
		}
		return nil
	})
}

// Terminate ends the daemon gracefully; pods run on.
func (i *Instance) Terminate(ctx context.Context) error { return i.end(ctx, syscall.SIGTERM) }

// Kill9 ends the daemon at once; pods run on.
func (i *Instance) Kill9(ctx context.Context) error { return i.end(ctx, syscall.SIGKILL) }

// Restart ends the daemon and starts it again; pods run on.
func (i *Instance) Restart(ctx context.Context) error {
	if err := i.Terminate(ctx); err != nil {
		return err
	}
	return i.Run(ctx)
}

// Pause makes the daemon hang: its socket accepts connections and nothing answers.
func (i *Instance) Pause() error { return i.Process.signal(syscall.SIGSTOP) }

// Resume ends what Pause began.
func (i *Instance) Resume() error { return i.Process.signal(syscall.SIGCONT) }

func (i *Instance) end(ctx context.Context, sig syscall.Signal) error {
	if !i.Running() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := errors.Join(i.proc.signal(sig), i.proc.signal(syscall.SIGCONT)); err != nil {
		return err
	}
	return poll(ctx, func() error {
		if i.proc.exited() {
			return nil
		}
		return fmt.Errorf("containerd %s (pid %d) has not ended", i.Name, i.proc.PID)
	})
}

// fatalError ends a poll early.
type fatalError struct{ error }

func fatal(err error) error { return fatalError{err} }

// poll calls check until it returns nil, a fatal error, or the context ends.
func poll(ctx context.Context, check func() error) error {
	ticker := time.NewTicker(pollInterval)
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

// tail returns the last lines of a log.
func tail(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}
