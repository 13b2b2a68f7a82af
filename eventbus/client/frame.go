package client

import (
	"errors"
	"fmt"
	"net"
)

// checkedConn fails when the broker sends what the MQTT library would not survive. The library allocates a packet of
// any announced size, and panics on a SUBACK without a code, in a goroutine of its own.
type checkedConn struct {
	net.Conn
	limit int
	// heard is called when something was received.
	heard func()

	state  int // 0: header, 1 to 4: bytes of the length, 5: body
	header byte
	size   int  // of the body, as far as it is known
	begun  bool // the answer to CONNECT was seen
}

const stateBody = 5

// The types of packets that a broker sends to a client whose messages and subscriptions have QoS 1.
const (
	typeConnack  = 2
	typePublish  = 3
	typePuback   = 4
	typeSuback   = 9
	typeUnsuback = 11
	typePingresp = 13
)

// Read implements net.Conn.
func (c *checkedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if follow := c.followPackets(p[:n]); follow != nil {
		return 0, follow
	}
	if n > 0 {
		c.heard()
	}
	return n, err
}

// followPackets goes through the packets in what was read.
func (c *checkedConn) followPackets(p []byte) error {
	for len(p) > 0 {
		switch c.state {
		case 0:
			c.state, c.size, c.header = 1, 0, p[0]
			p = p[1:]
			continue
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
				return errors.New("the broker sent a packet whose length has more than 4 bytes")
			}
			if more {
				continue
			}
			c.state = stateBody
			if err := c.check(); err != nil {
				return err
			}
		}
		if c.size == 0 {
			c.state = 0
		}
	}
	return nil
}

// check decides by the type and the size of a packet.
func (c *checkedConn) check() error {
	kind, size := c.header>>4, c.size
	if size > c.limit {
		return fmt.Errorf("the broker sent a packet of %d bytes, want at most %d", size, c.limit)
	}
	first := !c.begun
	c.begun = true
	ok := false
	switch kind {
	case typeConnack:
		return c.want(first && size == 2)
	case typePublish:
		qos := c.header >> 1 & 3
		ok = qos == 0 && size >= 2 || qos == 1 && size >= 4
	case typePuback, typeUnsuback:
		ok = size == 2
	case typeSuback:
		ok = size == 3 // for one filter
	case typePingresp:
		ok = size == 0
	}
	return c.want(ok && !first)
}

func (c *checkedConn) want(ok bool) error {
	if ok {
		return nil
	}
	return fmt.Errorf("the broker sent an invalid packet: type %d, flags %d, %d bytes", c.header>>4, c.header&0xf,
		c.size)
}
