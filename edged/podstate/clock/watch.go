package clock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// Watch calls changed each time the wall clock is set, until ctx ends. Small corrections, which change its speed, do
// not count. The kernel tells: nothing is polled.
func Watch(ctx context.Context, changed func()) error {
	fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("watch the clock: %w", err)
	}
	file := os.NewFile(uintptr(fd), "clock")
	defer file.Close()
	stop := context.AfterFunc(ctx, func() { _ = file.Close() }) // which ends the read
	defer stop()
	return follow(ctx, timer{file, fd}, changed)
}

// source is a timer of the kernel.
type source interface {
	// arm makes wait return when the clock is set next.
	arm() error
	// wait returns unix.ECANCELED when it was set.
	wait() error
}

func follow(ctx context.Context, s source, changed func()) error {
	for {
		err := s.arm()
		if errors.Is(err, unix.ECANCELED) { // set just now
			err = s.wait()
		}
		if err == nil {
			err = s.wait()
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ECANCELED):
			changed()
		case err != nil:
			return fmt.Errorf("watch the clock: %w", err)
		}
	}
}

// timer is a timerfd for a time that never comes.
type timer struct {
	file *os.File
	fd   int
}

func (t timer) arm() error {
	never := unix.ItimerSpec{Value: unix.NsecToTimespec(math.MaxInt64)}
	return unix.TimerfdSettime(t.fd, unix.TFD_TIMER_ABSTIME|unix.TFD_TIMER_CANCEL_ON_SET, &never, nil)
}

func (t timer) wait() error {
	_, err := t.file.Read(make([]byte, 8))
	return err
}
