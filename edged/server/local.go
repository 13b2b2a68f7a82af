package server

import (
	"context"
	"net"
	"net/http"
	"sync"
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
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
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
	return serveUntil(ctx, newServer(handler), l)
}

// Everybody is a Guard that lets in every request.
type Everybody struct{}

// Check implements Guard.
func (Everybody) Check(*http.Request, string, ...string) error { return nil }
