package dmi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
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

// listen makes the socket, which only root may use, and the group if there is one. Mappers may be able to write the
// folder: the socket never has a wider mode, and no link or file that they put in its place gets another mode or group.
func listen(ctx context.Context, path string, group int) (net.Listener, error) {
	// The group is set before anyone can connect: the socket is made under another name.
	hidden := path + ".new"
	for _, p := range []string{hidden, path} {
		if err := os.RemoveAll(p); err != nil { // a folder, too
			return nil, err
		}
	}
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		// The kernel gives the file of a socket the mode that the socket has when it is bound.
		return errors.Join(raw.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }), err)
	}}
	l, err := config.Listen(ctx, "unix", hidden)
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if group > 0 {
		err = share(hidden, group)
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

// share lets a group use a socket.
func share(path string, group int) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return fmt.Errorf("stat %s: %w", path, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFSOCK || stat.Nlink != 1 || stat.Uid != uint32(os.Geteuid()) {
		return fmt.Errorf("%s is not the socket that was made there: something else writes in its folder", path)
	}
	if err := unix.Fchownat(fd, "", -1, group, unix.AT_EMPTY_PATH); err != nil {
		return fmt.Errorf("change the group of %s: %w", path, err)
	}
	return os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), 0o660)
}

// peerAddr is the address of a process that is connected.
type peerAddr struct {
	net.Addr
	pid      int32
	identity identity
}

// peerListener gives connections a RemoteAddr that has the process at the other end.
type peerListener struct{ net.Listener }

func (l peerListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	pid, uid := processOf(conn)
	return peerConn{conn, pid, identify(pid, uid)}, nil
}

type peerConn struct {
	net.Conn
	pid      int32
	identity identity
}

func (c peerConn) RemoteAddr() net.Addr { return peerAddr{c.Conn.RemoteAddr(), c.pid, c.identity} }

// nobody is the user of a process that is unknown.
const nobody = 65534

// processOf returns the process at the other end of a Unix socket, and its user; 0 and nobody if that is unknown.
func processOf(conn net.Conn) (pid int32, uid uint32) {
	uid = nobody
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return pid, uid
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return pid, uid
	}
	_ = raw.Control(func(fd uintptr) { // an error leaves it unknown
		if cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			pid, uid = cred.Pid, cred.Uid
		}
	})
	return pid, uid
}
