package cloudstream

import (
	"context"
	"net"

	"golang.org/x/time/rate"

	"github.com/edgecore-io/edgecore/pkg/tunnel"
)

// burstMin is the least that passes at once, which is more than any single read has.
const burstMin = 64 << 10

// burst returns how many bytes may pass at once with a limit of bytes a second.
func burst(perSecond int64) int { return int(max(perSecond/4, burstMin)) }

// limited returns both ends of a connection with the node's limits of bytes a second.
func (n *node) limited(caller, stream net.Conn) (net.Conn, net.Conn) {
	if n.in == nil {
		return caller, stream
	}
	return &limitedConn{caller, n.ctx, n.in}, &limitedConn{stream, n.ctx, n.out}
}

// paced returns a connection with the node's limits in both directions.
func (n *node) paced(caller net.Conn) net.Conn {
	if n.in == nil {
		return caller
	}
	return &pacedConn{limitedConn{caller, n.ctx, n.in}, n.out}
}

// pacedConn delays writes to a rate, too.
type pacedConn struct {
	limitedConn
	out *rate.Limiter
}

func (c *pacedConn) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		part := p[n:min(len(p), n+burstMin)]
		if err = c.out.WaitN(c.ctx, len(part)); err == nil {
			var written int
			written, err = c.limitedConn.Write(part)
			n += written
		}
	}
	return n, err
}

// limitedConn delays reads to a rate, which flow control passes on to the sender.
type limitedConn struct {
	net.Conn
	ctx   context.Context
	limit *rate.Limiter
}

func (c *limitedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p[:min(len(p), burstMin)])
	if n > 0 {
		if waited := c.limit.WaitN(c.ctx, n); waited != nil && err == nil {
			err = waited
		}
	}
	return n, err
}

// CloseWrite ends the writing side.
func (c *limitedConn) CloseWrite() error { return tunnel.CloseWrite(c.Conn) }
