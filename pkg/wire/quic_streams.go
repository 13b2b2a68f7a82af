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

	"github.com/edgecore-io/edgecore/pkg/shares"
)

const (
	// StreamsMax is how many streams a link may have in addition to its own two. Each buffers at most its window of
	// unread data, 16 MiB in all.
	StreamsMax = 128
	// endedMax is how many streams more, read to their end, may wait for the node to acknowledge their end: 3 KB each.
	endedMax = 1024
	// streamWindow is the largest window of each stream and of the stream of messages. A device that cannot use streams
	// has a larger window for its messages. With a round trip of 50 ms it allows 2.6 MB a second.
	streamWindow = 128 << 10
	// useAPI begins a stream to the node's kubelet API, as streamUse begins the stream of messages.
	useAPI = "api"
	// openerTimeout is how long the first bytes of a stream may take.
	openerTimeout = 10 * time.Second
	// streamUrgency is less urgent than the 3 of the link's own streams, so their data is sent first.
	streamUrgency = 5
)

// Codes of resets of streams.
const (
	streamEnded  quic.StreamErrorCode = 0
	streamOpener quic.StreamErrorCode = 1 // its first bytes are not known here
)

// ErrStreams is returned by Streams.Open while StreamsMax streams are open, or endedMax have not ended at the node.
var ErrStreams = fmt.Errorf("the link has %d streams, or %d whose end the node has not acknowledged, which is the "+
	"limit", StreamsMax, endedMax)

// Streams are the streams of a QUIC link in addition to its own two, if both ends agreed on them (Features.Streams).
// The cloud opens one for each connection to the node's kubelet API. Each has its own window. The window of the
// connection is larger than all of these together, so a stream that is not read delays neither the others nor the link.
//
// A stream counts until the node has ended its direction, too, and has acknowledged the reset of the cloud's: until
// then QUIC keeps it, and what has arrived of it. It counts as open, unless all of it was read.
type Streams struct {
	conn *quic.Conn
	open atomic.Int32
	// ended are streams that were read to their end, and that QUIC has not given up.
	ended  atomic.Int32
	unread *unread // nil at the node
	// heard returns when the node was heard from last; end ends the link.
	heard func() int64
	end   func(error)
}

// Open opens a stream; only the cloud calls it. address is where callers reach the kubelet API; the zero value means
// unknown. Open waits until the node allows another stream, but not until the node has accepted it. lost ends with the
// link, or when the stream is ended because its data is not read; its cause is shares.ErrUnread then.
func (s *Streams) Open(ctx context.Context, address netip.Addr) (conn net.Conn, lost context.Context, err error) {
	if s.open.Add(1) > StreamsMax || s.ended.Load() >= endedMax {
		s.open.Add(-1)
		return nil, nil, ErrStreams
	}
	q, err := s.conn.OpenStreamSync(ctx)
	if err != nil {
		s.open.Add(-1)
		return nil, nil, err
	}
	q.SetPriority(streamUrgency, true)
	lost, lose := context.WithCancelCause(s.conn.Context())
	place := &s.open // ended once it was read to its end and closed
	e := &ending{
		link: s.conn.Context(), heard: s.heard, overdue: s.end,
		reset: func() { q.CancelWrite(streamEnded) },
		freed: func() {
			s.unread.free(q.StreamID())
			place.Add(-1)
		},
	}
	s.unread.open(q.StreamID(), e.acked, func() {
		lose(shares.ErrUnread)
		q.CancelRead(streamEnded)
	})
	e.follow(q)
	c := &Stream{countedStream: countedStream{q, s.unread}, conn: s.conn, closed: func(isRead, isReset bool) {
		lose(nil)
		if isRead {
			s.ended.Add(1)
			s.open.Add(-1)
			place = &s.ended
		}
		e.closed(isReset) // freed is not called before
	}}
	ip := address.AsSlice()
	err = c.SetWriteDeadline(time.Now().Add(openerTimeout))
	if err == nil {
		_, err = c.Write(append(append([]byte(useAPI), byte(len(ip))), ip...))
	}
	if err == nil {
		err = c.SetWriteDeadline(time.Time{})
	}
	if err != nil {
		_ = c.Close()
		return nil, nil, err
	}
	return c, lost, nil
}

// Accept waits for the next stream that the cloud opens; only the node calls it. An error means that the link or ctx
// has ended. The caller reads the stream's first bytes with Opener, without delaying the next Accept.
func (s *Streams) Accept(ctx context.Context) (*Stream, error) {
	q, err := s.conn.AcceptStream(ctx)
	if err != nil {
		return nil, err
	}
	q.SetPriority(streamUrgency, true)
	return &Stream{countedStream: countedStream{Stream: q}, conn: s.conn, closed: func(bool, bool) {}}, nil
}

// Stream is a stream of a link as a connection. One goroutine may read while another one writes.
type Stream struct {
	countedStream
	conn *quic.Conn
	// closed is called once. isRead: the peer has ended its direction, and all of it was read. isReset: this end's
	// direction was reset.
	closed func(isRead, isReset bool)
	// ended is set after the peer has ended its direction, wrote after this end has ended its own, done after Close.
	ended, wrote, done atomic.Bool
}

// Opener reads the first bytes of a stream that was accepted, and returns the address in them. After an error the
// stream is closed.
func (s *Stream) Opener() (netip.Addr, error) {
	err := s.SetReadDeadline(time.Now().Add(openerTimeout))
	var address netip.Addr
	if err == nil {
		address, err = readOpener(s.countedStream)
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
	n, err := s.countedStream.Read(p)
	if err == io.EOF {
		s.ended.Store(true)
	}
	return n, err
}

// CloseWrite ends the direction of this end; data that was written before is still delivered, for up to finalWait after
// the cloud has closed the stream.
func (s *Stream) CloseWrite() error {
	s.wrote.Store(true)
	return s.Stream.Close()
}

// Close implements net.Conn. A direction that has not ended yet is reset: the peer gets an error, and data in transit
// is lost.
func (s *Stream) Close() error {
	s.reset(streamEnded)
	return nil
}

func (s *Stream) reset(code quic.StreamErrorCode) {
	if s.done.Swap(true) {
		return
	}
	isRead := s.ended.Load()
	if !isRead {
		s.CancelRead(code)
	}
	isReset := !s.wrote.Load()
	if isReset {
		s.CancelWrite(code)
	}
	s.closed(isRead, isReset)
}

// LocalAddr implements net.Conn.
func (s *Stream) LocalAddr() net.Addr { return s.conn.LocalAddr() }

// RemoteAddr implements net.Conn.
func (s *Stream) RemoteAddr() net.Addr { return s.conn.RemoteAddr() }

// errStream ends a link whose cloud opens a stream although none were agreed on.
var errStream = &Malformed{Err: errors.New("the cloud has opened a stream although streams were not agreed on")}

// forbidStreams ends the link if the cloud opens a stream.
func (c *quicConn) forbidStreams() {
	if _, err := c.conn.AcceptStream(c.conn.Context()); err == nil {
		code, reason := CloseCode(errStream)
		c.endWith(errStream, code, reason)
	}
}
