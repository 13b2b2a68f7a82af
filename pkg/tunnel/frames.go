package tunnel

import (
	"encoding/binary"
	"errors"
	"net"
)

// ErrFrames is the error for a node that sends data in tiny frames.
var ErrFrames = errors.New("the node sends its data in frames that are too small")

// Unread data takes memory for each of its frames, in addition to its bytes. Streams carry TLS, whose records have at
// least 22 bytes, so a node that sends frames of one byte attacks cloudcore's memory.
const (
	// meterFrames is the number of data frames, of all streams, after which their total size is checked; meterBytes is
	// the least size. A frame counts as at most meterFrame bytes, so one large frame does not allow many tiny ones.
	meterFrames = 4096
	meterBytes  = 16 * meterFrames
	meterFrame  = 32
)

// Parts of a frame's header of yamux.
const (
	headerSize   = 12
	headerType   = 1
	headerLength = 8
	typeData     = 0
)

// meteredConn checks the frames that it reads.
type meteredConn struct {
	net.Conn
	frames frameMeter
}

// Read implements net.Conn.
func (c *meteredConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if !c.frames.add(p[:n]) && err == nil {
		err = ErrFrames
	}
	return n, err
}

// frameMeter finds the frames in the data that a peer sends.
type frameMeter struct {
	// header is the received part of the next header, body how many bytes of the current frame are still to be
	// received.
	header []byte
	body   uint32
	// count and size are the number of data frames since the last check and their bytes.
	count, size int
}

// add processes the next bytes, and reports whether the frames are large enough.
func (m *frameMeter) add(p []byte) bool {
	for len(p) > 0 {
		if m.body > 0 {
			n := min(int64(m.body), int64(len(p)))
			m.body -= uint32(n)
			p = p[n:]
			continue
		}
		n := min(headerSize-len(m.header), len(p))
		m.header = append(m.header, p[:n]...)
		p = p[n:]
		if len(m.header) < headerSize {
			break
		}
		length := binary.BigEndian.Uint32(m.header[headerLength:])
		if m.header[headerType] == typeData && length > 0 {
			m.body = length
			m.count++
			m.size += int(min(length, meterFrame))
		}
		m.header = m.header[:0]
		if m.count == meterFrames {
			if m.size < meterBytes {
				return false
			}
			m.count, m.size = 0, 0
		}
	}
	return true
}
