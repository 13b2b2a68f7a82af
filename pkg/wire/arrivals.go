package wire

import (
	"bytes"
	"compress/flate"
	"errors"
	"io"
	"strings"
	"sync"

	"github.com/edgecore-io/edgecore/beehive/model"
)

// ReadBuffers shares temporary read buffers between connections. Its zero value is ready for use.
type ReadBuffers struct{ chunks, inflaters sync.Pool }

// chunk is how much is read at once: a TLS record has up to 16 KB, but most messages are smaller.
const chunk = 4 << 10

// arrivals reads the cloud's end of a WebSocket. Of thousands nearly all are idle, and their cost is the stack of the
// reading goroutine: deep in TLS it takes 8 to 16 KB. So arrivals waits with a shallow stack, and reads what is there,
// without waiting, in a short-lived goroutine.
type arrivals struct {
	conn    *wsConn
	socket  *waitingConn
	buffers *ReadBuffers
	frames  frameReader
	rest    []byte // bytes after a message
	steps   chan step
}

// step is the result of one read.
type step struct {
	m   *model.Message
	err error
}

func newArrivals(c *wsConn, socket *waitingConn, buffers *ReadBuffers) *arrivals {
	if buffers == nil {
		buffers = &ReadBuffers{}
	}
	return &arrivals{conn: c, socket: socket, buffers: buffers,
		frames: frameReader{limit: c.limits.MaxMessage, deflate: c.features.Deflate}, steps: make(chan step)}
}

// next waits for a message.
func (a *arrivals) next() (*model.Message, error) {
	for {
		go a.step()
		found := <-a.steps
		if found.err != errNothing {
			return found.m, found.err
		}
		if err := a.socket.wait(); err != nil {
			return nil, err
		}
	}
}

func (a *arrivals) step() {
	m, err := a.readAvailable()
	a.steps <- step{m, err}
}

// readAvailable reads until there is a message, or nothing more to read.
func (a *arrivals) readAvailable() (*model.Message, error) {
	buf, _ := a.buffers.chunks.Get().(*[]byte)
	if buf == nil {
		buf = new(make([]byte, chunk))
	}
	defer a.buffers.chunks.Put(buf)
	data := a.rest
	a.rest = nil
	for {
		for len(data) > 0 {
			done, rest, err := a.frames.feed(data)
			if err != nil {
				a.refuse(err)
				return nil, err
			}
			data = rest
			if done == nil {
				continue
			}
			if m, err := a.arrived(done); m != nil || err != nil {
				a.rest = bytes.Clone(rest)
				return m, err
			}
		}
		n, err := a.conn.ws.NetConn().Read(*buf)
		if n == 0 && err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF // a peer must close first
			}
			return nil, err
		}
		a.conn.setHeard()
		data = (*buf)[:n]
	}
}

// refuse tells a peer at once that its message is too large: it is still sending.
func (a *arrivals) refuse(err error) {
	var large *TooLarge
	if errors.As(err, &large) {
		a.close(CloseCode(err))
	}
}

// close sends a close frame; a peer that does not read it is gone or closing.
func (a *arrivals) close(code int, reason string) { _ = a.conn.sayClose(code, reason) }

// arrived handles a complete frame. For a control frame it returns no message.
func (a *arrivals) arrived(f *frame) (*model.Message, error) {
	switch f.opcode {
	case opPing:
		return nil, a.conn.pingCame(string(f.payload))
	case opPong:
		return nil, nil
	case opClose:
		err := closing(f.payload)
		var closed *Closed
		if errors.As(err, &closed) {
			a.close(closed.Code, "")
		}
		return nil, err
	}
	data := f.payload
	if f.deflated {
		var err error
		if data, err = a.inflate(data); err != nil {
			return nil, err
		}
	}
	a.conn.tally.received.Add(int64(len(data)))
	m, err := DecodeJSON(data)
	if err == nil {
		a.conn.tally.messagesReceived.Add(1)
	}
	return m, err
}

// tail ends what a message leaves open (RFC 7692 section 7.2.2), and then the stream.
const tail = "\x00\x00\xff\xff\x01\x00\x00\xff\xff"

// inflate decompresses a message, up to the limit.
func (a *arrivals) inflate(data []byte) ([]byte, error) {
	in := io.MultiReader(bytes.NewReader(data), strings.NewReader(tail))
	r, _ := a.buffers.inflaters.Get().(io.ReadCloser)
	if r == nil {
		r = flate.NewReader(in)
	} else if err := r.(flate.Resetter).Reset(in, nil); err != nil {
		return nil, err
	}
	defer a.buffers.inflaters.Put(r)
	var out bytes.Buffer
	limit := a.conn.limits.MaxMessage
	n, err := out.ReadFrom(io.LimitReader(r, limit+1))
	switch {
	case err != nil:
		return nil, &Malformed{Err: err}
	case n > limit:
		return nil, &TooLarge{Limit: limit}
	}
	return out.Bytes(), nil
}
