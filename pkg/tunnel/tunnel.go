// Package tunnel is what both ends of a tunnel share. A tunnel carries connections to a node's kubelet API (port 10250)
// for callers that cannot reach the node: through a connection that the node has made, as streams of yamux.
//
// The cloud asks for a tunnel with a message over the link (Request). The node then connects to the address of its link
// (wire.DialTunnel) and names the token of the request. Only the cloud opens streams. A stream carries the bytes of one
// connection, as they are: TLS, credentials and permissions are between the caller and the node.
//
// Each stream has a window of its own, so that a slow reader delays only itself. CloseWrite ends one direction of a
// stream and leaves the other open; Close ends both directions at once, at both ends.
//
// A QUIC link can carry such streams itself (wire.Streams), without a tunnel.
//
// APIOpener and APIAcceptor are the ends of a connection in the other direction, which carries requests of the node to
// the Kubernetes API (wire.DialAPI): there, only the node opens streams.
package tunnel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/shares"
)

// Route of the message that asks for a tunnel.
const (
	Source    = "cloudstream"
	Group     = "tunnel"
	Operation = "open"
	Resource  = "tunnel"
)

const (
	// keepalive is how often each end checks that the other one is there, while there is a tunnel; with answerTimeout
	// a dead one is noticed within 20 s.
	keepalive     = 10 * time.Second
	answerTimeout = 10 * time.Second
	// openTimeout is how long a stream may wait for the node to accept those before it.
	openTimeout = 20 * time.Second
	// cloudWindow and nodeWindow are how many bytes of a stream each end takes before they are read. Windows are filled
	// only by slow readers; a large one is needed where the round trip is long: of a MiB in 50 ms, 20 MB pass a second.
	// Devices have less memory, and less is sent to them.
	cloudWindow = 1 << 20
	nodeWindow  = 256 << 10
	// backlog is how many streams may wait for the node to accept them, streamsMax how many may be open on the node.
	backlog    = 256
	streamsMax = 2048
	// copyBuffer is the size of the buffer of each direction of a stream. With the headers of yamux and WebSocket it
	// fits into a TLS record.
	copyBuffer = 16<<10 - 64
	// tokenMax is the largest token in bytes.
	tokenMax = 64
	// callerTimeout is how long a caller may keep a connection whose node sends no more. Linux waits as long for the
	// end of a connection that a server has closed (FIN-WAIT-2). kube-apiserver never closes some of them.
	callerTimeout = time.Minute
)

// Request is the content of the message that asks for a tunnel.
type Request struct {
	// Token names the request. It is random, and valid once.
	Token string `json:"token"`
	// Address is the IP address at which the node's kubelet API is reached through the tunnel; its serving certificate
	// should include it.
	Address string `json:"address"`
}

// Message returns the message.
func (r Request) Message() *model.Message {
	content, err := json.Marshal(r)
	if err != nil { // strings always encode
		panic(err)
	}
	return model.New(Source, Group, Operation, Resource, content)
}

// ParseRequest reads the content of such a message.
func ParseRequest(m *model.Message) (Request, error) {
	var r Request
	if err := json.Unmarshal(m.Content, &r); err != nil {
		return r, fmt.Errorf("request for a tunnel: %w", err)
	}
	if r.Token == "" || len(r.Token) > tokenMax {
		return r, fmt.Errorf("request for a tunnel: its token has %d bytes, want 1 to %d", len(r.Token), tokenMax)
	}
	if r.Address != "" && net.ParseIP(r.Address) == nil {
		return r, fmt.Errorf("request for a tunnel: address %.64q is not an IP address", r.Address)
	}
	return r, nil
}

func config(window, streams uint32) *yamux.Config {
	c := yamux.DefaultConfig()
	c.AcceptBacklog = backlog
	c.MaxIncomingStreams = streams
	c.KeepAliveInterval = keepalive
	c.ConnectionWriteTimeout = answerTimeout
	c.InitialStreamWindowSize, c.MaxStreamWindowSize = window, window
	c.LogOutput = io.Discard // what ends a tunnel is an error of its streams, too
	return c
}

// cloudEnd is what both kinds of connections have in the cloud: the data that callers do not read is counted.
type cloudEnd struct {
	session *yamux.Session
	conn    *meteredConn
	unread  *unread
	// resets are the goroutines of cloudStream.cut; they end with the session.
	resets sync.WaitGroup
}

// CutLargest implements Holder.
func (e *cloudEnd) CutLargest() bool { return e.unread.cutLargest() }

// Evict implements Holder.
func (e *cloudEnd) Evict() {
	e.unread.closeAll()
	e.conn.evict() // the session ends when reading fails
}

// closeAndWait ends the session, and waits for what it needs.
func (e *cloudEnd) closeAndWait() {
	_ = e.session.Close()
	e.resets.Wait()
	e.unread.closeAll()
}

// Streams returns how many streams there are.
func (e *cloudEnd) Streams() int { return e.session.NumStreams() }

// Close ends the connection and its streams.
func (e *cloudEnd) Close() error { return e.session.Close() }

// Opener is the cloud's end of a tunnel.
type Opener struct {
	cloudEnd
	ctx context.Context
	end context.CancelFunc

	// opening guards opened, the number of streams that were opened, and is held while one is.
	opening sync.Mutex
	opened  uint32
}

var _ shares.Holder = (*Opener)(nil)

// NewOpener makes the cloud's end of a tunnel, which owns the connection. Data that callers do not read is counted in
// m.
func NewOpener(conn net.Conn, m *shares.Memory) (*Opener, error) {
	o := &Opener{}
	o.unread = &unread{memory: m, holder: o, streams: map[uint32]*unreadStream{}}
	arrived := func(f frame) error {
		if !f.data() {
			return nil
		}
		return o.unread.arrived(f.stream, f.length)
	}
	o.conn = &meteredConn{Conn: conn, arrived: arrived, closed: make(chan struct{})}
	session, err := yamux.Client(o.conn, config(cloudWindow, 1), nil)
	if err != nil {
		return nil, err
	}
	o.session = session
	o.ctx, o.end = context.WithCancel(context.Background())
	return o, nil
}

// Context ends when Run does.
func (o *Opener) Context() context.Context { return o.ctx }

// ErrStream is the error of a node that opens streams itself.
var ErrStream = errors.New("the node has opened a stream, which only the cloud may do")

// Run serves the tunnel until it ends. Its error is ErrStream, shares.ErrUnread, or why the connection has ended.
func (o *Opener) Run() error {
	defer o.end()
	defer o.closeAndWait()
	stream, err := o.session.AcceptStream()
	if err != nil {
		return err
	}
	_ = stream.Reset() // the tunnel ends anyway
	return ErrStream
}

// Open opens a stream. It does not wait for the node to accept the stream unless many others wait already. A tunnel
// whose node accepts no stream for 20 s is closed. lost ends with the tunnel, or when the stream is ended because its
// data is not read; its cause is shares.ErrUnread then.
func (o *Opener) Open() (c net.Conn, lost context.Context, err error) {
	o.opening.Lock()
	defer o.opening.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	// The node may send data before OpenStream returns: the data of the stream is counted before. yamux gives the
	// streams of a client odd numbers, one after the other.
	id := 2*o.opened + 1
	o.opened++
	s := &cloudStream{of: &o.cloudEnd}
	s.lost, s.lose = context.WithCancelCause(o.ctx)
	o.unread.open(id, func() { s.cut() })
	stream, err := o.session.OpenStream(ctx)
	if err == nil && stream.StreamID() != id {
		err = fmt.Errorf("yamux gave stream %d the number %d", id, stream.StreamID())
	}
	if err != nil {
		o.unread.close(id)
		s.lose(nil)
		_ = o.session.Close()
		return nil, nil, err
	}
	s.set(stream)
	return s, s.lost, nil
}

// cloudStream is the cloud's end of a stream.
type cloudStream struct {
	*yamux.Stream
	of   *cloudEnd
	lost context.Context
	lose context.CancelCauseFunc
	mu   sync.Mutex // guards the stream until Open returns
}

// Read implements net.Conn.
func (s *cloudStream) Read(p []byte) (int, error) {
	n, err := s.Stream.Read(p)
	if n > 0 {
		s.of.unread.read(s.StreamID(), n)
	}
	return n, err
}

// Close ends both directions at both ends. It does nothing if both have ended.
func (s *cloudStream) Close() error {
	err := s.Reset()
	s.of.unread.close(s.StreamID())
	s.lose(nil)
	return err
}

// set says which stream it is; it was perhaps cut before.
func (s *cloudStream) set(stream *yamux.Stream) {
	s.mu.Lock()
	s.Stream = stream
	s.mu.Unlock()
	if s.lost.Err() != nil {
		_ = stream.Reset()
	}
}

// cut ends a stream whose data is not read. The session's reading goroutine calls it, and must not wait for the session
// to end: a session that cannot send waits for that goroutine. So cut returns when the reset is queued, or when the
// session has closed its connection. Until then nothing more is read, since what still comes for the stream is not
// counted. It reports whether there was a stream: it may not be open yet.
func (s *cloudStream) cut() bool {
	s.lose(shares.ErrUnread)
	s.mu.Lock()
	stream := s.Stream
	s.mu.Unlock()
	if stream == nil {
		return false
	}
	done := make(chan struct{})
	s.of.resets.Go(func() {
		defer close(done)
		_ = stream.Reset() // or the tunnel has ended
	})
	select {
	case <-done:
	case <-s.of.conn.closed:
	}
	return true
}

// Acceptor is the node's end of a tunnel.
type Acceptor struct{ session *yamux.Session }

// NewAcceptor makes the node's end of a tunnel, which owns the connection.
func NewAcceptor(conn net.Conn) (*Acceptor, error) {
	session, err := yamux.Server(conn, config(nodeWindow, streamsMax), nil)
	if err != nil {
		return nil, err
	}
	return &Acceptor{session}, nil
}

// Accept waits for the next stream. After an error the tunnel has ended.
func (a *Acceptor) Accept() (net.Conn, error) {
	s, err := a.session.AcceptStream()
	if err != nil {
		return nil, err
	}
	return stream{s}, nil
}

// stream is a stream of a tunnel. After the peer's CloseWrite, Read returns io.EOF; after the peer's Close or the end
// of the tunnel, it returns another error.
type stream struct{ *yamux.Stream }

// Close ends both directions at both ends. It does nothing if both have ended.
func (s stream) Close() error { return s.Reset() }

// Streams returns how many streams there are.
func (a *Acceptor) Streams() int { return a.session.NumStreams() }

// Close ends the tunnel and its streams.
func (a *Acceptor) Close() error { return a.session.Close() }

// Join copies both ways between the connection of a caller and the one that leads to the node, until both directions
// have ended or one has failed; then it closes both. The end of one direction is passed on. A caller that sends no more
// gets what the node sends for as long as that takes; when the node sends no more, the caller has a minute.
// fromCaller and fromNode are called with how many bytes have come, as they come; they may be nil.
func Join(caller, node net.Conn, fromCaller, fromNode func(n int)) {
	closeBoth := func() {
		_ = caller.Close()
		_ = node.Close()
	}
	defer closeBoth()
	var both sync.WaitGroup
	one := func(to, from net.Conn, count func(n int)) {
		_, err := io.CopyBuffer(plainWriter{to}, plainReader{from, count}, make([]byte, copyBuffer))
		if err == nil {
			err = CloseWrite(to)
		}
		if err != nil {
			closeBoth()
		}
	}
	both.Go(func() { one(node, caller, fromCaller) })
	one(caller, node, fromNode)
	defer time.AfterFunc(callerTimeout, closeBoth).Stop()
	both.Wait()
}

// plainWriter and plainReader hide methods that would copy with larger buffers.
type (
	plainWriter struct{ io.Writer }
	plainReader struct {
		io.Reader
		count func(n int)
	}
)

// Read implements io.Reader.
func (r plainReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 && r.count != nil {
		r.count(n)
	}
	return n, err
}

// CloseWrite ends the sending direction of a connection, or the whole connection if it cannot be half-closed.
func CloseWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}
