package wire

import (
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"

	"github.com/edgecore-io/edgecore/beehive/model"
)

const (
	// buffer is the size of an edge's WebSocket's buffers: messages are mostly smaller.
	buffer = 4 << 10
	// acceptBuffer is that of the cloud's, which has thousands. What is read comes out of the record that TLS has in
	// memory, so that a small one costs no calls of the system; it also lets go of the HTTP server's.
	acceptBuffer = 512
	// writeStep is the payload of a frame, which has to leave within the write limit: a slow link may take long for a
	// large message. Pings and their answers go between frames.
	writeStep = 4 << 10
	// deflateFrom is the size from which compressing saves more than it costs.
	deflateFrom = 512
	// goodbye is how long telling the peer why may take.
	goodbye = 500 * time.Millisecond
)

// wsConn is a WebSocket as a Conn. It writes all frames itself (framewriter.go), and reads those that come from an edge
// (arrivals.go); gorilla makes the connection, and reads the edge's end.
type wsConn struct {
	ws       *websocket.Conn
	client   bool // this end connected
	limits   Limits
	features Features
	onPing   func()
	counter  *countingConn // nil: payload is counted
	arrivals *arrivals     // nil: ws is read
	tally    tally

	writing sync.Mutex // the frames of a message follow each other
	// turn is held while a frame is written. It is a channel: who waits for it has a deadline.
	turn      chan struct{}
	closeSent bool // by the holder of turn
	ponging   atomic.Bool

	ending sync.Once
	// cause is why this end gave up; it counts more than what reading then says.
	cause atomic.Pointer[error]
}

// tally is what both kinds of connections count.
type tally struct {
	start                                                  time.Time
	sent, received, messagesSent, messagesReceived, pinged atomic.Int64
	heard                                                  atomic.Int64 // since start
}

func (t *tally) setHeard() { t.heard.Store(int64(time.Since(t.start))) }

func (t *tally) stats() Stats {
	return Stats{
		BytesSent: t.sent.Load(), BytesReceived: t.received.Load(),
		MessagesSent: t.messagesSent.Load(), MessagesReceived: t.messagesReceived.Load(),
		Pings: t.pinged.Load(), LastReceived: t.start.Add(time.Duration(t.heard.Load())),
	}
}

// newWebSocket makes a Conn of a WebSocket that is connected; client says at which end this is.
func newWebSocket(ws *websocket.Conn, client bool, limits Limits, features Features, onPing func()) *wsConn {
	c := &wsConn{ws: ws, client: client, limits: limits, features: features, onPing: onPing,
		counter: counterOf(ws.NetConn()), turn: make(chan struct{}, 1)}
	c.tally.start = time.Now()
	ws.SetReadLimit(limits.MaxMessage)
	ws.SetPongHandler(func(string) error {
		c.setHeard()
		return nil
	})
	ws.SetPingHandler(c.pingCame)
	ws.SetCloseHandler(func(code int, _ string) error {
		_ = c.sayClose(code, "") // a peer that does not read it is gone or closing
		return nil
	})
	return c
}

func (c *wsConn) Features() Features   { return c.features }
func (c *wsConn) Protocol() string     { return ProtocolWebSocket }
func (c *wsConn) Streams() *Streams    { return nil }
func (c *wsConn) RemoteAddr() net.Addr { return c.ws.RemoteAddr() }

func (c *wsConn) Stats() Stats {
	s := c.tally.stats()
	if c.counter != nil {
		s.BytesSent, s.BytesReceived = c.counter.sent.Load(), c.counter.received.Load()
	}
	return s
}

// setHeard notes a sign of life.
func (c *wsConn) setHeard() {
	c.tally.setHeard()
	c.allowSilence()
}

func (c *wsConn) allowSilence() {
	if c.cause.Load() == nil {
		// fails only when the socket is closed, which Read tells
		_ = c.ws.SetReadDeadline(time.Now().Add(c.limits.ReadTimeout))
	}
}

// pingCame answers a ping beside the reading: if both ends waited here for the other to read, neither would.
func (c *wsConn) pingCame(data string) error {
	c.setHeard()
	c.tally.pinged.Add(1)
	if c.onPing != nil {
		c.onPing()
	}
	if !c.ponging.CompareAndSwap(false, true) {
		return nil // the answer that is on its way is a sign of life, too
	}
	go func() {
		defer c.ponging.Store(false)
		if err := c.control(opPong, []byte(data), c.limits.WriteTimeout); err != nil {
			c.fail(err)
		}
	}()
	return nil
}

// Read implements Conn.
func (c *wsConn) Read() (*model.Message, error) {
	c.allowSilence()
	if c.arrivals != nil {
		m, err := c.arrivals.next()
		if err != nil {
			return nil, c.readError(err)
		}
		return m, nil
	}
	_, r, err := c.ws.NextReader()
	if err != nil {
		return nil, c.readError(err)
	}
	var in bytes.Buffer // not kept: most links are at rest most of the time
	n, err := in.ReadFrom(io.LimitReader(activityReader{r, c}, c.limits.MaxMessage+1))
	if err != nil {
		return nil, c.readError(err)
	}
	if n > c.limits.MaxMessage { // decompressed
		return nil, &TooLarge{Limit: c.limits.MaxMessage}
	}
	c.tally.received.Add(n)
	m, err := DecodeJSON(in.Bytes())
	if err != nil {
		return nil, err
	}
	c.tally.messagesReceived.Add(1)
	return m, nil
}

// activityReader takes each part of a message as a sign of life.
type activityReader struct {
	r io.Reader
	c *wsConn
}

func (h activityReader) Read(p []byte) (int, error) {
	n, err := h.r.Read(p)
	if n > 0 {
		h.c.setHeard()
	}
	return n, err
}

// readError says what an error of reading means.
func (c *wsConn) readError(err error) error {
	if cause := c.cause.Load(); cause != nil {
		return *cause
	}
	var closed *websocket.CloseError
	var corrupt flate.CorruptInputError
	switch {
	case errors.As(err, &closed):
		if closed.Code == closeAbnormalCode {
			return io.ErrUnexpectedEOF
		}
		return &Closed{Code: closed.Code, Reason: printable(closed.Text)}
	case errors.Is(err, websocket.ErrReadLimit):
		return &TooLarge{Limit: c.limits.MaxMessage}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ErrSilent
	case errors.As(err, &corrupt), strings.HasPrefix(err.Error(), "websocket: "):
		return &Malformed{Err: err}
	}
	return err
}

// Write implements Conn.
func (c *wsConn) Write(m *model.Message) error {
	data, err := EncodeJSON(m)
	if err != nil {
		return err
	}
	if size := int64(len(data)); size > c.limits.MaxMessage {
		return &TooLarge{Size: size, Limit: c.limits.MaxMessage}
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	// Counted before its answer may come.
	c.tally.sent.Add(int64(len(data)))
	c.tally.messagesSent.Add(1)
	if err := c.write(data); err != nil {
		return c.fail(err)
	}
	return nil
}

// write sends a message; control frames may go between its frames.
func (c *wsConn) write(data []byte) error {
	form := plain
	if c.features.Deflate && len(data) >= deflateFrom {
		form = compressed
	}
	return form(data).frames(writeStep, c.client, func(frame []byte) error {
		return c.writeFrame(frame, time.Now().Add(c.limits.WriteTimeout))
	})
}

// writeFrame writes a frame when those before it have left.
func (c *wsConn) writeFrame(frame []byte, deadline time.Time) error {
	if !c.takeTurn(deadline) {
		return os.ErrDeadlineExceeded
	}
	defer func() { <-c.turn }()
	if c.closeSent {
		return websocket.ErrCloseSent
	}
	c.closeSent = frame[0]&0x0f == opClose
	conn := c.ws.NetConn()
	if err := conn.SetWriteDeadline(deadline); err != nil {
		return err
	}
	_, err := conn.Write(frame)
	return err
}

// takeTurn waits for turn, and reports whether it got it before the deadline.
func (c *wsConn) takeTurn(deadline time.Time) bool {
	select {
	case c.turn <- struct{}{}:
		return true
	default:
	}
	wait := time.NewTimer(time.Until(deadline))
	defer wait.Stop()
	select {
	case c.turn <- struct{}{}:
		return true
	case <-wait.C:
		return false
	}
}

// control writes a control frame; data has at most maxControl bytes.
func (c *wsConn) control(op byte, data []byte, timeout time.Duration) error {
	return c.writeFrame(controlFrame(op, data, c.client), time.Now().Add(timeout))
}

// sayClose writes a close frame, the last one of a connection.
func (c *wsConn) sayClose(code int, reason string) error {
	return c.control(opClose, websocket.FormatCloseMessage(code, cutReason(reason)), goodbye)
}

// Ping implements Conn.
func (c *wsConn) Ping() error {
	if err := c.control(opPing, nil, c.limits.WriteTimeout); err != nil {
		return c.fail(err)
	}
	return nil
}

// fail ends the link after an error of writing, and returns why it ended.
func (c *wsConn) fail(err error) error {
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		err = fmt.Errorf("the network took nothing for %v: %w", c.limits.WriteTimeout, os.ErrDeadlineExceeded)
	}
	if !errors.Is(err, websocket.ErrCloseSent) { // which Read tells the reason of
		c.ending.Do(func() {
			c.cause.Store(&err)
			_ = rawConn(c.ws.NetConn()).Close() // without TLS's farewell, which could wait again
		})
	}
	if cause := c.cause.Load(); cause != nil {
		return *cause
	}
	return err // the end is under way
}

// Close implements Conn.
func (c *wsConn) Close(code int, reason string) error {
	c.ending.Do(func() {
		err := ErrClosed
		c.cause.Store(&err)
		raw := rawConn(c.ws.NetConn())
		bound := time.AfterFunc(2*goodbye, func() { _ = raw.Close() })
		defer bound.Stop()
		failed := c.sayClose(code, reason)
		told := failed == nil || errors.Is(failed, websocket.ErrCloseSent) // arrivals says at once what is too large
		if told && code != CloseNormal && code != CloseGoingAway && code != CloseSilent {
			drain(raw)
		}
		_ = raw.Close()
	})
	return nil
}

// drain reads what the peer is still sending, so that the reason reaches it: closing a socket with unread bytes throws
// away what was written before.
func drain(raw net.Conn) {
	half := raw
	if c, ok := half.(*countingConn); ok { // which may not wait
		half = c.Conn
	}
	if w, ok := half.(interface{ CloseWrite() error }); ok {
		_ = w.CloseWrite()
		_ = raw.SetReadDeadline(time.Now().Add(goodbye))
		_, _ = io.Copy(io.Discard, half)
	}
}
