package wiretest

import (
	"context"
	"net"
	"sync"
	"testing"
)

// Memory is a listener whose connections stay inside the process, so that a test on a simulated clock
// (testing/synctest) can use them: nothing in it waits for the kernel.
type Memory struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// NewMemory makes a listener. It ends with its test.
func NewMemory(t testing.TB) *Memory {
	m := &Memory{conns: make(chan net.Conn), done: make(chan struct{})}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// Accept implements net.Listener.
func (m *Memory) Accept() (net.Conn, error) {
	select {
	case c := <-m.conns:
		return c, nil
	case <-m.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (m *Memory) Close() error {
	m.once.Do(func() { close(m.done) })
	return nil
}

// Addr implements net.Listener. The address is one for which Server makes certificates.
func (m *Memory) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 10000} }

// Dial connects to the listener; it does not look at the address.
func (m *Memory) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case m.conns <- far:
		return near, nil
	case <-m.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// NewMemoryProxy passes connections of its Dial on to a target.
func NewMemoryProxy(t testing.TB, target *Memory) *Proxy {
	t.Helper()
	front := NewMemory(t)
	return newProxy(t, front, front.Dial, target.Dial, "")
}
