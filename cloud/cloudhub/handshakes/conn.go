package handshakes

import (
	"crypto/tls"
	"net"
	"sync/atomic"
	"time"

	"github.com/edgecore-io/edgecore/pkg/sourceaddr"
)

// Listen makes a listener's connections wait for slots. It belongs below TLS. Call Done for each connection as soon as
// its request has been read; until then, one goroutine reads and writes it.
func (l *Limiter) Listen(inner net.Listener) net.Listener { return listener{inner, l} }

type listener struct {
	net.Listener
	limiter *Limiter
}

func (l listener) Accept() (net.Conn, error) {
	inner, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: inner, limiter: l.limiter}
	c.turn.Store(&turn{source: sourceaddr.Of(inner.RemoteAddr()), accepted: time.Now()})
	return c, nil
}

// conn is a connection that waits for slots until it is done.
type conn struct {
	net.Conn
	limiter *Limiter
	turn    atomic.Pointer[turn] // nil: done
}

// NetConn returns the connection below.
func (c *conn) NetConn() net.Conn { return c.Conn }

// Read waits for bytes without a slot, and returns them with one.
func (c *conn) Read(p []byte) (int, error) {
	t := c.turn.Load()
	if t == nil {
		return c.Conn.Read(p)
	}
	c.limiter.releaseSlot(t)
	n, err := c.Conn.Read(p)
	if n == 0 {
		return n, err
	}
	first, failed := c.limiter.acquireSlot(t)
	if failed != nil {
		return 0, failed
	}
	if first {
		// The server's timeout began when the connection was accepted. An error means that the connection is closed,
		// which the next Read reports.
		_ = c.SetDeadline(time.Now().Add(c.limiter.opts.Timeout))
	}
	return n, err
}

// Write returns the slot first, because it may wait for the network. What is left to do until the next Read is little.
func (c *conn) Write(p []byte) (int, error) {
	if t := c.turn.Load(); t != nil {
		c.limiter.releaseSlot(t)
	}
	return c.Conn.Write(p)
}

// Close closes the connection; it also ends a Read that waits for a slot.
func (c *conn) Close() error {
	c.done()
	return c.Conn.Close()
}

func (c *conn) done() {
	if t := c.turn.Swap(nil); t != nil {
		c.limiter.closeTurn(t)
	}
}

// Done lets a connection go on without slots. Connections of other listeners are ignored.
func Done(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if c, ok := c.(*conn); ok {
		c.done()
	}
}
