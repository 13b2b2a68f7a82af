package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
)

const (
	// StreamsMax is how many streams a link has at most beside its own. Each takes no more bytes than its window before
	// they are read: on the device these are 16 MiB for all of them.
	StreamsMax = 128
	// streamWindow is the largest window of a device's streams where the cloud may open some, that of the messages
	// included. Of 128 KiB in 50 ms, 2.6 MB pass a second.
	streamWindow = 128 << 10
	// useAPI begins a stream to the node's kubelet API, as streamUse begins that of the messages.
	useAPI = "api"
	// openerTimeout is how long the first bytes of a stream may take.
	openerTimeout = 10 * time.Second
	// streamUrgency comes after the urgency of the link's own streams, 3: whenever these have something to send, it
	// leaves first.
	streamUrgency = 5
)

// Codes with which an end resets a stream.
const (
	streamEnded  quic.StreamErrorCode = 0
	streamOpener quic.StreamErrorCode = 1 // its first bytes are not known here
)

// ErrStreams is returned by Streams.Open while there are as many streams as a link may have.
var ErrStreams = fmt.Errorf("the link has %d streams, which is the limit", StreamsMax)

// Streams are those of a QUIC link beside its own, where both ends agreed on them (Features.Streams): the cloud opens
// one for each connection to the node's kubelet API. Each has its own window. The window of the connection is larger
// than all of them together, so that a stream that is not read delays neither the others nor the link.
type Streams struct {
	conn *quic.Conn
	open atomic.Int32
}

// Open opens a stream, in the cloud. address is where callers reach the kubelet API; the zero value is not known. Open
// waits until the node takes another stream, not until it has accepted this one.
func (s *Streams) Open(ctx context.Context, address netip.Addr) (net.Conn, error) {
	if s.open.Add(1) > StreamsMax {
		s.open.Add(-1)
		return nil, ErrStreams
	}
	q, err := s.conn.OpenStreamSync(ctx)
	if err != nil {
		s.open.Add(-1)
		return nil, err
	}
	q.SetPriority(streamUrgency, true)
	c := &Stream{Stream: q, conn: s.conn, closed: func() { s.open.Add(-1) }}
	ip := address.AsSlice()
	err = c.SetWriteDeadline(time.Now().Add(openerTimeout))
	if err == nil {
		_, err = c.Write(append(append([]byte(useAPI), byte(len(ip))), ip...))
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, c.SetWriteDeadline(time.Time{})
}

// Accept waits for the next stream that the cloud opens, on the node. After an error the link has ended, or ctx. The
// caller reads the stream's first bytes with Opener, without delaying the next Accept.
func (s *Streams) Accept(ctx context.Context) (*Stream, error) {
	q, err := s.conn.AcceptStream(ctx)
	if err != nil {
		return nil, err
	}
	q.SetPriority(streamUrgency, true)
	return &Stream{Stream: q, conn: s.conn, closed: func() {}}, nil
}

// Stream is one of a link's streams as a connection. One goroutine may read while another one writes.
type Stream struct {
	*quic.Stream
	conn   *quic.Conn
	closed func() // called once
	// ended: the peer has sent everything. wrote: this end has. done: Close was called.
	ended, wrote, done atomic.Bool
}

// Opener reads the first bytes of a stream that was accepted, and returns the address in them. After an error the
// stream is closed.
func (s *Stream) Opener() (netip.Addr, error) {
	err := s.SetReadDeadline(time.Now().Add(openerTimeout))
	var address netip.Addr
	if err == nil {
		address, err = readOpener(s.Stream)
	}
	if err != nil {
		s.reset(streamOpener)
		return netip.Addr{}, err
	}
	return address, s.SetReadDeadline(time.Time{})
}

// readOpener reads the three bytes of the use, and an address: its length in a byte, and 0, 4 or 16 bytes.
func readOpener(r io.Reader) (netip.Addr, error) {
	var head [len(useAPI) + 1]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return netip.Addr{}, err
	}
	if use := head[:len(useAPI)]; string(use) != useAPI {
		return netip.Addr{}, malformed("a stream for %q is not supported", use)
	}
	var ip [16]byte
	switch n := head[len(useAPI)]; n {
	case 0:
		return netip.Addr{}, nil
	case 4, 16:
		if _, err := io.ReadFull(r, ip[:n]); err != nil {
			return netip.Addr{}, err
		}
		address, _ := netip.AddrFromSlice(ip[:n])
		return address, nil
	default:
		return netip.Addr{}, malformed("a stream has an address of %d bytes, want 0, 4 or 16", n)
	}
}

// Read implements net.Conn.
func (s *Stream) Read(p []byte) (int, error) {
	n, err := s.Stream.Read(p)
	if err == io.EOF {
		s.ended.Store(true)
	}
	return n, err
}

// CloseWrite ends what this end sends; what was written arrives.
func (s *Stream) CloseWrite() error {
	s.wrote.Store(true)
	return s.Stream.Close()
}

// Close implements net.Conn. A direction that has not ended in order is reset: the peer gets an error, and what is
// under way is lost.
func (s *Stream) Close() error {
	s.reset(streamEnded)
	return nil
}

func (s *Stream) reset(code quic.StreamErrorCode) {
	if s.done.Swap(true) {
		return
	}
	if !s.ended.Load() || !s.wrote.Load() {
		s.CancelRead(code)
		s.CancelWrite(code)
	}
	s.closed()
}

// LocalAddr implements net.Conn.
func (s *Stream) LocalAddr() net.Addr { return s.conn.LocalAddr() }

// RemoteAddr implements net.Conn.
func (s *Stream) RemoteAddr() net.Addr { return s.conn.RemoteAddr() }

// errStream ends the link of a cloud that opens streams that were not agreed on.
var errStream = &Malformed{Err: errors.New("the cloud has opened a stream although streams were not agreed on")}

// forbidStreams ends the link with its first stream.
func (c *quicConn) forbidStreams() {
	if _, err := c.conn.AcceptStream(c.conn.Context()); err == nil {
		code, reason := CloseCode(errStream)
		c.end(errStream, code, reason)
	}
}
