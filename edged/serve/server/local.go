package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Local is a listener in the process: a part of the agent that has already decided who may ask connects to it.
type Local struct {
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

// NewLocal makes a listener.
func NewLocal() *Local {
	l := &Local{conns: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	return l
}

// Dial connects, once the listener is served.
func (l *Local) Dial(ctx context.Context) (net.Conn, error) {
	near, far, err := socketPair()
	if err != nil {
		return nil, err
	}
	if l.enqueue(ctx, far) {
		return near, nil
	}
	if err = ctx.Err(); err == nil {
		err = net.ErrClosed
	}
	return nil, errors.Join(err, near.Close(), far.Close())
}

// enqueue hands a connection to the next Accept. It returns false if the listener is closed.
func (l *Local) enqueue(ctx context.Context, c net.Conn) bool {
	select {
	case l.conns <- c:
		return true
	case <-l.closed:
	case <-ctx.Done():
	}
	return false
}

// socketPair returns two connections that are joined, and that can be half closed.
func socketPair() (near, far net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	if near, err = connOf(fds[0]); err != nil {
		return nil, nil, errors.Join(err, unix.Close(fds[1]))
	}
	if far, err = connOf(fds[1]); err != nil {
		return nil, nil, errors.Join(err, near.Close())
	}
	return near, far, nil
}

// connOf makes a connection of a socket, which it takes over.
func connOf(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "socketpair")
	defer func() { _ = f.Close() }() // the connection has a descriptor of its own
	return net.FileConn(f)
}

// Accept implements net.Listener.
func (l *Local) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *Local) Close() error {
	l.close()
	return nil
}

// Addr implements net.Listener.
func (l *Local) Addr() net.Addr { return localAddr{} }

type localAddr struct{}

func (localAddr) Network() string { return "local" }
func (localAddr) String() string  { return "this process" }

// ServeLocal serves a handler in the process until ctx ends.
func ServeLocal(ctx context.Context, l *Local, handler http.Handler) error {
	srv := newServer(handler)
	srv.MaxHeaderBytes = knownHeader
	return serveUntil(ctx, srv, l)
}

// Everybody is a Guard that lets in every request.
type Everybody struct{}

// Check implements Guard.
func (Everybody) Check(*http.Request, string, ...string) error { return nil }
