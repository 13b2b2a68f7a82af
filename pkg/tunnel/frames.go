package tunnel

import (
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Parts of a frame's header of yamux.
const (
	headerSize   = 12
	headerType   = 1
	headerFlags  = 2
	headerStream = 4
	headerLength = 8
	typeData     = 0
	typeWindow   = 1
	flagSYN      = 1
	flagRST      = 8
)

// frame is the header of a frame.
type frame struct {
	kind           uint8
	flags          uint16
	stream, length uint32
}

// readFrame reads a header, which has headerSize bytes.
func readFrame(header []byte) frame {
	return frame{
		kind:   header[headerType],
		flags:  binary.BigEndian.Uint16(header[headerFlags:]),
		stream: binary.BigEndian.Uint32(header[headerStream:]),
		length: binary.BigEndian.Uint32(header[headerLength:]),
	}
}

// data reports whether bytes of a stream follow the header.
func (f frame) data() bool { return f.kind == typeData && f.length > 0 }

// meteredConn reports the frames that it reads, before the session takes memory for them.
type meteredConn struct {
	net.Conn
	frames frameParser
	// arrived is called for each frame that was read; its error ends the connection.
	arrived func(frame) error
	// sent is called for each frame before it is written; it may be nil.
	sent func(frame)
	// silence is how long the peer may send nothing; 0 is forever.
	silence time.Duration
	evicted atomic.Bool

	closing sync.Once
	closed  chan struct{} // by Close
}

// errEvicted ends a connection that was ended by evict.
var errEvicted = errors.New("its node has most of the data that nobody reads")

// Read implements net.Conn.
func (c *meteredConn) Read(p []byte) (int, error) {
	if c.silence > 0 {
		if err := c.SetReadDeadline(time.Now().Add(c.silence)); err != nil {
			return 0, err
		}
	}
	if c.evicted.Load() {
		return 0, errEvicted
	}
	n, err := c.Conn.Read(p)
	if refused := c.frames.parse(p[:n], c.arrived); refused != nil {
		return 0, refused
	}
	return n, err
}

// Write implements net.Conn. yamux writes one frame at a time.
func (c *meteredConn) Write(p []byte) (int, error) {
	if c.sent != nil && len(p) >= headerSize {
		c.sent(readFrame(p))
	}
	return c.Conn.Write(p)
}

// Close implements net.Conn.
func (c *meteredConn) Close() error {
	c.closing.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// evict makes reading fail at once. It does not wait.
func (c *meteredConn) evict() {
	c.evicted.Store(true)
	_ = c.SetReadDeadline(time.Unix(1, 0)) // fails only on a closed connection
}

// frameParser finds the frames in what a peer sends.
type frameParser struct {
	// header is the received part of the next header, body how many bytes of the current frame are still to be
	// received.
	header []byte
	body   uint32
}

// parse processes the next bytes. It calls found for each frame whose header is complete, and returns the first error
// of it.
func (f *frameParser) parse(p []byte, found func(frame) error) error {
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
		next := readFrame(f.header)
		f.header = f.header[:0]
		if next.data() {
			f.body = next.length
		}
		if err := found(next); err != nil {
			return err
		}
	}
	return nil
}
