package wire

import (
	"net"
	"sync/atomic"
)

// CountBytes makes a listener's connections count their bytes, for Stats, and keeps the kernel's send queue short, for
// pings. It belongs below TLS.
func CountBytes(l net.Listener) net.Listener { return countingListener{l} }

type countingListener struct{ net.Listener }

func (l countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return count(c), nil
}

func count(c net.Conn) *countingConn {
	tuneConn(c)
	return &countingConn{Conn: c}
}

// countingConn is a connection that counts.
type countingConn struct {
	net.Conn
	// waiting is set once Read must no longer wait.
	waiting        *waitingConn
	sent, received atomic.Int64
}

func (c *countingConn) Read(p []byte) (n int, err error) {
	if c.waiting != nil {
		n, err = c.waiting.Read(p)
	} else {
		n, err = c.Conn.Read(p)
	}
	c.received.Add(int64(n))
	return n, err
}

// errNothing means that there is nothing to read now. TLS continues after temporary errors.
var errNothing error = nothingYet{}

type nothingYet struct{}

func (nothingYet) Error() string   { return "nothing to read" }
func (nothingYet) Timeout() bool   { return true }
func (nothingYet) Temporary() bool { return true }

func (c *countingConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.sent.Add(int64(n))
	return n, err
}

// counterOf returns the counting connection below a TLS connection, or nil.
func counterOf(c net.Conn) *countingConn {
	counter, _ := rawConn(c).(*countingConn)
	return counter
}

// rawConn is the connection below TLS, and below what else wraps it.
func rawConn(c net.Conn) net.Conn {
	for {
		wrapped, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return c
		}
		c = wrapped.NetConn()
	}
}
