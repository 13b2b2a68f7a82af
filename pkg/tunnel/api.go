package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/edgecore-io/edgecore/pkg/shares"
)

// Limits of a connection for the API (wire.DialAPI), on which the node opens streams.
const (
	// APIStreams is how many streams a node may have. Another one is reset before anything is kept for it.
	APIStreams = 64
	// apiUnclosed is how many streams may be open in the cloud, with those that the node has reset and whose end has
	// not been noticed yet.
	apiUnclosed = 2 * APIStreams
	// apiWindow is how many bytes of a stream each end takes before they are read.
	apiWindow = 256 << 10
	// apiMessage is the largest frame that is sent. At most 64 of them wait to be written, 1 MiB.
	apiMessage = 16 << 10
	// apiSilence is how long a node may send nothing: it sends a ping every minute while it has a stream, and closes a
	// connection without a stream after that time.
	apiSilence = 150 * time.Second
)

// APIPing is how often a node sends a ping while it has a stream. It closes a connection that has had none for as long.
const APIPing = time.Minute

// Errors of connections for the API.
var (
	// ErrAPIStreams is the error of a node that has all streams it may have.
	ErrAPIStreams = fmt.Errorf("%d requests to the API are under way through the cloud, which is the limit", APIStreams)
	// errUnclosed ends the connection of a node that opens streams faster than the cloud can close them.
	errUnclosed = fmt.Errorf("the node has opened more than %d streams that are not closed", apiUnclosed)
)

// apiConfig is the configuration of both ends. yamux sends one ping of its own when a session begins.
func apiConfig() *yamux.Config {
	c := yamux.DefaultConfig()
	c.AcceptBacklog = APIStreams
	c.MaxIncomingStreams = APIStreams
	c.EnableKeepAlive = false
	c.MeasureRTTInterval = math.MaxInt64
	c.ConnectionWriteTimeout = answerTimeout
	c.InitialStreamWindowSize, c.MaxStreamWindowSize = apiWindow, apiWindow
	c.MaxMessageSize = apiMessage
	c.LogOutput = io.Discard // what ends a session is an error of its streams, too
	return c
}

// APIOpener is the node's end of a connection for the API. Its methods may be called from any goroutine.
type APIOpener struct{ session *yamux.Session }

// NewAPIOpener makes the node's end, which owns the connection.
func NewAPIOpener(conn net.Conn) (*APIOpener, error) {
	c := apiConfig()
	c.MaxIncomingStreams = 0 // the cloud opens none
	session, err := yamux.Client(conn, c, nil)
	if err != nil {
		return nil, err
	}
	return &APIOpener{session}, nil
}

// Open opens a stream. It waits for the cloud only while the cloud has accepted none of the streams before.
func (o *APIOpener) Open(ctx context.Context) (net.Conn, error) {
	if o.session.NumStreams() >= APIStreams {
		return nil, ErrAPIStreams
	}
	s, err := o.session.OpenStream(ctx)
	if err != nil {
		return nil, err
	}
	return stream{s}, nil
}

// Streams returns how many streams there are.
func (o *APIOpener) Streams() int { return o.session.NumStreams() }

// Ping waits for the cloud's answer to a ping, for 20 s at most.
func (o *APIOpener) Ping() error {
	_, err := o.session.Ping()
	return err
}

// Closed is closed when the connection has ended.
func (o *APIOpener) Closed() <-chan struct{} { return o.session.CloseChan() }

// Close ends the connection and its streams.
func (o *APIOpener) Close() error { return o.session.Close() }

// APIAcceptor is the cloud's end of a connection for the API.
//
// A node can make it keep no more than its share of the memory for unread data, and 1 MiB that waits to be written.
type APIAcceptor struct {
	cloudEnd

	mu sync.Mutex
	// open are the streams that the node has opened and the cloud has not closed.
	open map[uint32]*cloudStream
}

var _ shares.Holder = (*APIAcceptor)(nil)

// NewAPIAcceptor makes the cloud's end, which owns the connection. Data that is not read is counted in m.
func NewAPIAcceptor(conn net.Conn, m *shares.Memory) (*APIAcceptor, error) {
	a := &APIAcceptor{open: map[uint32]*cloudStream{}}
	a.unread = &unread{memory: m, holder: a, streams: map[uint32]*unreadStream{}}
	a.conn = &meteredConn{
		Conn:    conn,
		arrived: a.arrived,
		sent:    a.sent,
		silence: apiSilence,
		closed:  make(chan struct{}),
	}
	session, err := yamux.Server(a.conn, apiConfig(), nil)
	if err != nil {
		return nil, err
	}
	a.session = session
	return a, nil
}

// Serve hands each stream to handle, until the connection ends. handle owns the stream, and must not block.
func (a *APIAcceptor) Serve(handle func(net.Conn)) error {
	defer a.closeAndWait()
	for {
		accepted, err := a.session.AcceptStream()
		if err != nil {
			return err
		}
		a.mu.Lock()
		s := a.open[accepted.StreamID()]
		a.mu.Unlock()
		if s == nil {
			_ = accepted.Reset() // it has ended meanwhile
			continue
		}
		s.set(accepted)
		handle(apiStream{s, a})
	}
}

// arrived is called for each frame, before the session reads it.
func (a *APIAcceptor) arrived(f frame) error {
	if f.flags&flagSYN != 0 && f.kind <= typeWindow {
		if err := a.opened(f.stream); err != nil {
			return err
		}
	}
	if !f.data() {
		return nil
	}
	return a.unread.arrived(f.stream, f.length)
}

// opened begins to count a stream. The session refuses one whose number is taken.
func (a *APIAcceptor) opened(id uint32) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open[id] != nil {
		return nil
	}
	if len(a.open) >= apiUnclosed {
		return errUnclosed
	}
	s := &cloudStream{of: &a.cloudEnd}
	s.lost, s.lose = context.WithCancelCause(context.Background())
	a.open[id] = s
	a.unread.open(id, func() {
		if !s.cut() { // it has not been accepted, because nothing can be sent to the node
			a.conn.evict()
		}
	})
	return nil
}

// sent is called for each frame before it is written. A stream that is reset takes no memory: it is one over the limit,
// or was cut.
func (a *APIAcceptor) sent(f frame) {
	if f.flags&flagRST != 0 {
		a.closed(f.stream)
	}
}

// closed ends the counting of a stream.
func (a *APIAcceptor) closed(id uint32) {
	a.mu.Lock()
	delete(a.open, id)
	a.mu.Unlock()
	a.unread.close(id)
}

// apiStream is a stream that a node has opened.
type apiStream struct {
	*cloudStream
	a *APIAcceptor
}

// Close ends both directions. What was written reaches the node. It does nothing if both have ended, or the node has
// reset the stream.
func (s apiStream) Close() error {
	err := s.Stream.Close()
	s.a.closed(s.StreamID())
	s.lose(nil)
	if _, reset := errors.AsType[*yamux.StreamError](err); reset || errors.Is(err, yamux.ErrStreamClosed) {
		return nil
	}
	return err
}
