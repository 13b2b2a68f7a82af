package wire

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/edgecore-io/edgecore/beehive/model"
)

// alpn names our protocol over QUIC: KubeEdge's library predates IETF QUIC, and neither can talk to the other
// (docs/wire.md, QUIC). The streams carry KubeEdge's protocol: a control stream with the header message and its answer,
// then a stream of messages that begins with "msg". After its answer the control stream carries single bytes, the pings
// and their answers.
const (
	alpn       = "edgecore/1"
	streamUse  = "msg"
	signPing   = 0x01
	signPong   = 0x02
	windowLow  = 64 << 10
	windowHigh = 1 << 20
)

// quicConfig keeps memory small: there are many links, and most messages are small. streams is how many streams the
// peer may open, window the largest window of a stream.
func quicConfig(limits Limits, streams int64, window uint64) *quic.Config {
	// A connection's window is extended only after a quarter of it was read, so three quarters are always available. At
	// 1.5 times the sum of all streams' windows, a stream can always use its own window, even if no other stream is
	// read.
	//
	// The windows also limit what a hostile peer can fill. Received data that cannot be read yet takes about 180 bytes
	// of heap for each byte, if the first byte of a stream is missing and each frame has one byte. With windows of
	// 128 KiB that is 3 GB for the open streams of a connection, and 4.5 GB for all of its window, which also covers
	// streams that were closed here but not by the peer. So the cloud counts frames (unread).
	const all = (StreamsMax + 2) * 3 / 2
	return &quic.Config{
		// A dial has its own timeout, which QUIC's 5 s would override.
		HandshakeIdleTimeout: defaultHandshake,
		// QUIC's timeout is longer than ours, which gives a reason.
		MaxIdleTimeout:             limits.ReadTimeout + 5*time.Second,
		InitialStreamReceiveWindow: windowLow, MaxStreamReceiveWindow: window,
		InitialConnectionReceiveWindow: all * window, MaxConnectionReceiveWindow: all * window,
		MaxIncomingStreams: streams, MaxIncomingUniStreams: -1,
		// Path MTU discovery costs some 10 KB a connection, on links that are mostly idle.
		DisablePathMTUDiscovery: true,
	}
}

// quicConn is a QUIC connection as a Conn.
type quicConn struct {
	conn              *quic.Conn
	control, messages countedStream
	limits            Limits
	features          Features
	onPing            func()
	tally             tally
	// streams are the streams in addition to the link's own; nil if none were agreed on.
	streams *Streams

	writing, signing sync.Mutex
	ending           sync.Once
	cause            atomic.Pointer[error]
}

// start reads the control stream until the connection ends.
func (c *quicConn) start() *quicConn {
	c.tally.start = time.Now()
	if c.features.Streams {
		end := func(why error) { c.endWith(why, CloseGoingAway, why.Error()) }
		c.streams = &Streams{conn: c.conn, unread: unreadOf(c.conn), heard: c.tally.heard.Load, end: end}
	}
	_ = c.control.SetDeadline(time.Time{})
	go c.readPings()
	return c
}

func (c *quicConn) Features() Features   { return c.features }
func (c *quicConn) Protocol() string     { return ProtocolQUIC }
func (c *quicConn) Streams() *Streams    { return c.streams }
func (c *quicConn) RemoteAddr() net.Addr { return c.conn.RemoteAddr() }

func (c *quicConn) Stats() Stats {
	s, q := c.tally.stats(), c.conn.ConnectionStats()
	s.BytesSent, s.BytesReceived = int64(q.BytesSent), int64(q.BytesReceived)
	return s
}

func (c *quicConn) setHeard() {
	c.tally.setHeard()
	c.allowSilence()
}

func (c *quicConn) allowSilence() {
	_ = c.messages.SetReadDeadline(time.Now().Add(c.limits.ReadTimeout)) // fails only after the end, which Read reports
}

// readPings answers pings.
func (c *quicConn) readPings() {
	var signs [64]byte
	for {
		n, err := c.control.Read(signs[:])
		for _, sign := range signs[:n] {
			c.setHeard()
			if sign == signPong {
				continue
			}
			if sign != signPing {
				_ = c.fail(malformed("message type %#02x on the control stream is unknown", sign))
				return
			}
			c.tally.pinged.Add(1)
			if c.onPing != nil {
				c.onPing()
			}
			if c.writePing(signPong) != nil {
				return
			}
		}
		if err != nil {
			_ = c.fail(c.quicError(err))
			return
		}
	}
}

func (c *quicConn) writePing(sign byte) error {
	c.signing.Lock()
	defer c.signing.Unlock()
	err := c.control.SetWriteDeadline(time.Now().Add(c.limits.WriteTimeout))
	if err == nil {
		_, err = c.control.Write([]byte{sign})
	}
	if err != nil {
		return c.fail(c.writeError(err))
	}
	return nil
}

// Ping implements Conn.
func (c *quicConn) Ping() error { return c.writePing(signPing) }

// Read implements Conn.
func (c *quicConn) Read() (*model.Message, error) {
	c.allowSilence()
	m, err := ReadPacked(quicActivityReader{c}, c.limits.MaxMessage)
	if err != nil {
		if cause := c.cause.Load(); cause != nil {
			return nil, *cause
		}
		return nil, c.quicError(err)
	}
	c.tally.messagesReceived.Add(1)
	return m, nil
}

type quicActivityReader struct{ c *quicConn }

func (h quicActivityReader) Read(p []byte) (int, error) {
	n, err := h.c.messages.Read(p)
	if n > 0 {
		h.c.setHeard()
	}
	return n, err
}

// quicError interprets a read error.
func (c *quicConn) quicError(err error) error {
	var closed *quic.ApplicationError
	timeout := net.Error(nil)
	switch {
	case errors.As(err, &closed) && closed.Remote:
		return &Closed{Code: int(closed.ErrorCode), Reason: printable(closed.ErrorMessage)}
	case errors.As(err, &timeout) && timeout.Timeout():
		return ErrSilent
	case errors.Is(err, io.EOF): // the end of the stream ends the link
		return io.ErrUnexpectedEOF
	}
	return err
}

// Write implements Conn.
func (c *quicConn) Write(m *model.Message) error {
	data, err := encodePacked(m)
	if err != nil {
		return err
	}
	if size := int64(len(data) - packedHead); size > c.limits.MaxMessage {
		return &TooLarge{Size: size, Limit: c.limits.MaxMessage}
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	c.tally.messagesSent.Add(1)
	for len(data) > 0 {
		step := min(len(data), writeStep)
		err := c.messages.SetWriteDeadline(time.Now().Add(c.limits.WriteTimeout))
		if err == nil {
			_, err = c.messages.Write(data[:step])
		}
		if err != nil {
			return c.fail(c.writeError(err))
		}
		data = data[step:]
	}
	return nil
}

// writeError interprets a write error.
func (c *quicConn) writeError(err error) error {
	var idle *quic.IdleTimeoutError
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() && !errors.As(err, &idle) {
		return fmt.Errorf("the network took nothing for %v: %w", c.limits.WriteTimeout, os.ErrDeadlineExceeded)
	}
	return c.quicError(err)
}

// fail ends the link with an error, and returns why it ended.
func (c *quicConn) fail(err error) error {
	c.endWith(err, CloseGoingAway, "")
	return *c.cause.Load()
}

// Close implements Conn.
func (c *quicConn) Close(code int, reason string) error {
	c.endWith(ErrClosed, code, reason)
	return nil
}

func (c *quicConn) endWith(cause error, code int, reason string) {
	c.ending.Do(func() {
		c.cause.Store(&cause)
		_ = c.conn.CloseWithError(quic.ApplicationErrorCode(max(code, 0)), cutReason(reason))
	})
}
