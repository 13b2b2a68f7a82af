package wire

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// waitingConn is a socket whose Read does not wait, and which is waited for apart.
type waitingConn struct {
	raw  syscall.RawConn
	peek [1]byte
}

// newWaiting is nil for what is no socket.
func newWaiting(c net.Conn) *waitingConn {
	s, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil
	}
	return &waitingConn{raw: raw}
}

// wait returns when there is something to read: bytes, the end, or an error, which Read tells.
func (w *waitingConn) wait() error {
	return w.raw.Read(func(fd uintptr) bool {
		for {
			_, _, err := unix.Recvfrom(int(fd), w.peek[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
			if !errors.Is(err, unix.EINTR) {
				return !errors.Is(err, unix.EAGAIN)
			}
		}
	})
}

// Read is errNothing when there is nothing now.
func (w *waitingConn) Read(p []byte) (n int, err error) {
	failed := w.raw.Read(func(fd uintptr) bool {
		for {
			n, err = syscall.Read(int(fd), p) // as net does: the race detector knows what comes over it
			if !errors.Is(err, unix.EINTR) {
				return true
			}
		}
	})
	switch {
	case failed != nil:
		return 0, failed
	case errors.Is(err, unix.EAGAIN):
		return 0, errNothing
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return n, nil
}
