package dmi

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// makeMappersDir makes the folder in which mappers of the group make their sockets. None of them may replace another
// user's.
func makeMappersDir(dir string, group int) error {
	path := filepath.Join(dir, MappersDir)
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	mode := os.FileMode(0o700)
	if group > 0 {
		mode = 0o770 | os.ModeSticky
	}
	if info, err := os.Lstat(path); err != nil || !info.IsDir() {
		return fmt.Errorf("%s is not a folder: remove it", path)
	}
	if err := os.Chown(path, 0, group); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

// listen makes the socket, which only root may use, and the group if there is one.
func listen(path string, group int) (net.Listener, error) {
	// The mode is set before anyone can connect: the socket is made under another name.
	hidden := path + ".new"
	if err := os.Remove(hidden); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	l, err := net.Listen("unix", hidden)
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	mode := os.FileMode(0o600)
	if group > 0 {
		mode = 0o660
		err = os.Chown(hidden, 0, group)
	}
	if err == nil {
		err = os.Chmod(hidden, mode)
	}
	if err == nil {
		err = os.Rename(hidden, path)
	}
	if err != nil {
		_ = l.Close() // the other error is the cause
		return nil, err
	}
	return l, nil
}

// peerAddr is the address of a process that is connected.
type peerAddr struct {
	net.Addr
	pid int32
}

// peerListener gives connections a RemoteAddr that has the process at the other end.
type peerListener struct{ net.Listener }

func (l peerListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return peerConn{conn, pidOf(conn)}, nil
}

type peerConn struct {
	net.Conn
	pid int32
}

func (c peerConn) RemoteAddr() net.Addr { return peerAddr{c.Conn.RemoteAddr(), c.pid} }

// pidOf returns the process at the other end of a Unix socket; 0 if that is unknown.
func pidOf(conn net.Conn) (pid int32) {
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		return 0
	}
	raw, err := unix.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { // an error leaves pid 0
		if cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			pid = cred.Pid
		}
	})
	return pid
}
