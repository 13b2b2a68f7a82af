package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is the first process of a container, held by a pidfd: it cannot turn into another one.
type process struct {
	fd   int
	file *os.File
	conn syscall.RawConn
}

// openProcess opens the process that the runtime named for a container. os.ErrProcessDone says that it has ended, or
// that its pid was given to another one since.
func openProcess(pid int, containerID string) (*process, error) {
	if pid <= 0 {
		return nil, os.ErrProcessDone
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, os.ErrProcessDone
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d of container %s: %w", pid, containerID, err)
	}
	// The id of the container is in the cgroup of its processes.
	if data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup"); err != nil ||
		!strings.Contains(string(data), containerID) {
		return nil, errors.Join(os.ErrProcessDone, unix.Close(fd))
	}
	// So that Go's poller takes it. Kernels before 5.10 have no flag for it at the opening.
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	p := &process{fd: fd, file: os.NewFile(uintptr(fd), "pidfd")}
	if p.conn, err = p.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, p.file.Close())
	}
	return p, nil
}

func (p *process) close() { _ = p.file.Close() } // nothing was written

// signal sends a signal; os.ErrProcessDone means that the process is gone.
func (p *process) signal(s unix.Signal) error {
	err := unix.PidfdSendSignal(p.fd, s, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// wait returns nil when the process has ended, without polling, or the error of ctx when that ended first.
func (p *process) wait(ctx context.Context) error {
	if err := p.file.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("wait for a process: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = p.file.SetReadDeadline(time.Unix(1, 0)) })() // it wakes the wait
	err := p.conn.Read(func(fd uintptr) bool {
		// A pidfd is readable from the end of its process on.
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || (err != nil && !errors.Is(err, unix.EINTR))
	})
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
