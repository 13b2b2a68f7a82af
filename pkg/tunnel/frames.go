package tunnel

import (
	"encoding/binary"
	"net"
	"sync"
)

// Parts of a frame's header of yamux.
const (
	headerSize   = 12
	headerType   = 1
	headerStream = 4
	headerLength = 8
	typeData     = 0
)

// meteredConn reports the data frames that it reads, before the session takes memory for them. arrived returns an error
// to end the connection. closed is closed by Close.
type meteredConn struct {
	net.Conn
	frames  frameParser
	arrived func(stream, length uint32) error

	closing sync.Once
	closed  chan struct{}
}

// Close implements net.Conn.
func (c *meteredConn) Close() error {
	c.closing.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// Read implements net.Conn.
func (c *meteredConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if refused := c.frames.parse(p[:n], c.arrived); refused != nil {
		return 0, refused
	}
	return n, err
}

// frameParser finds the data frames in what a peer sends.
type frameParser struct {
	// header is the received part of the next header, body how many bytes of the current frame are still to be
	// received.
	header []byte
	body   uint32
}

// parse processes the next bytes. It calls found for each data frame whose header is complete, and returns the first
// error of it.
func (f *frameParser) parse(p []byte, found func(stream, length uint32) error) error {
	for len(p) > 0 {
		if f.body > 0 {
			n := min(int64(f.body), int64(len(p)))
			f.body -= uint32(n)
			p = p[n:]
			continue
		}
		n := min(headerSize-len(f.header), len(p))
		f.header = append(f.header, p[:n]...)
		p = p[n:]
		if len(f.header) < headerSize {
			break
		}
		length := binary.BigEndian.Uint32(f.header[headerLength:])
		stream := binary.BigEndian.Uint32(f.header[headerStream:])
		data := f.header[headerType] == typeData && length > 0
		f.header = f.header[:0]
		if !data {
			continue
		}
		f.body = length
		if err := found(stream, length); err != nil {
			return err
		}
	}
	return nil
}
