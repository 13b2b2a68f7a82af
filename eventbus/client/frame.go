package client

import (
	"fmt"
	"net"
)

// boundedConn fails when the broker announces a packet that is too large. The MQTT library would allocate it first.
type boundedConn struct {
	net.Conn
	limit int

	state int // 0: header, 1 to 4: bytes of the length, 5: body
	size  int // of the body, as far as it is known
}

const stateBody = 5

// Read implements net.Conn.
func (c *boundedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if follow := c.follow(p[:n]); follow != nil {
		return 0, follow
	}
	return n, err
}

// follow goes through the packets in what was read.
func (c *boundedConn) follow(p []byte) error {
	for len(p) > 0 {
		switch c.state {
		case 0:
			c.state, c.size = 1, 0
			p = p[1:]
		case stateBody:
			n := min(c.size, len(p))
			c.size -= n
			p = p[n:]
		default:
			c.size |= int(p[0]&0x7f) << (7 * (c.state - 1))
			more := p[0]&0x80 != 0
			c.state++
			p = p[1:]
			if more && c.state == stateBody {
				return fmt.Errorf("the broker sent a packet whose length has more than 4 bytes")
			}
			if more {
				continue
			}
			c.state = stateBody
			if c.size > c.limit {
				return fmt.Errorf("the broker sent a packet of %d bytes, want at most %d", c.size, c.limit)
			}
		}
		if c.state == stateBody && c.size == 0 {
			c.state = 0
		}
	}
	return nil
}
