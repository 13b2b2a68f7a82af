package wire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/qlogwriter"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/shares"
	"github.com/edgecore-io/edgecore/pkg/sourceaddr"
)

const (
	// headerName is both resource and operation of the header message.
	headerName = "header"
	// maxHeader limits the messages of the handshake.
	maxHeader = 64 << 10
	// handshakesMax is how many connections may be between TLS and their header message, sourceHandshakesMax how many
	// of them from one address: many nodes may share one behind NAT, but they do not all connect at the same moment.
	handshakesMax       = 256
	sourceHandshakesMax = 32
	// secretsMax is how many connections may be in their TLS handshake, sourceSecretsMax how many of them from one
	// address. Nothing can end one before its time, and each takes up to 6 MB if its handshake comes in frames of one
	// byte. From spoofedMax on, a caller has to show that its address is its own, which takes a round trip.
	secretsMax       = 64
	sourceSecretsMax = 16
	spoofedMax       = 8
	// secretsTimeout is how long a caller may be silent in its TLS handshake, which takes twice that at most.
	secretsTimeout = 10 * time.Second
)

// errSecrets refuses a connection before its TLS handshake. QUIC sends no more than that it is refused, which it also
// is while cloudcore stops.
var errSecrets = errors.New("cloudcore takes no connection now: too many are in their TLS handshake, or it stops")

// errPaused refuses connections while the process is short of memory.
var errPaused = errors.New("cloudcore is short of memory and takes no connection by QUIC now")

// headerAnswer is the content of the answer to the header message.
type headerAnswer struct {
	Ack    bool        `json:"ack"`
	Reason string      `json:"reason,omitempty"`
	Header http.Header `json:"header,omitempty"`
}

// DialQUIC connects to a cloud of ours. A refused handshake is *Refused.
func DialQUIC(ctx context.Context, o DialOptions) (Conn, error) {
	u, err := url.Parse(o.URL)
	if err != nil {
		return nil, fmt.Errorf("connect by QUIC: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, o.handshakeTimeout())
	defer cancel()
	conn, err := dialQUIC(ctx, u.Host, o)
	if err != nil {
		if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
			err = fmt.Errorf("%w (%w)", ctx.Err(), err)
		}
		return nil, fmt.Errorf("connect to %s by QUIC: %w", u.Host, err)
	}
	return conn, nil
}

func dialQUIC(ctx context.Context, addr string, o DialOptions) (Conn, error) {
	config := &tls.Config{}
	if o.TLS != nil {
		config = o.TLS.Clone()
	}
	config.MinVersion, config.NextProtos = tls.VersionTLS13, []string{alpn}
	limits := o.Limits.withDefaults()
	streams, window := int64(-1), uint64(windowHigh)
	if o.Features.Tunnel {
		streams, window = StreamsMax, streamWindow
	}
	conn, err := quic.DialAddr(ctx, addr, config, quicConfig(limits, streams, window))
	if err != nil {
		return nil, refusalQUIC(err) // it may have arrived before the end of the handshake
	}
	c, err := introduce(ctx, conn, o, limits)
	if err != nil {
		_ = conn.CloseWithError(CloseGoingAway, "")
		return nil, refusalQUIC(err)
	}
	c.start()
	if o.Features.Tunnel && !c.features.Streams {
		go c.forbidStreams()
	}
	return c, nil
}

// refusalQUIC converts the cloud's close error to that of its answer: a delayed edge no longer sees the answer if the
// cloud has closed the connection.
func refusalQUIC(err error) error {
	var closed *quic.ApplicationError
	if errors.As(err, &closed) && closed.Remote && closed.ErrorMessage != "" {
		return &Refused{Text: printable(closed.ErrorMessage)}
	}
	var refused *quic.TransportError
	if errors.As(err, &refused) && refused.Remote && refused.ErrorCode == quic.ConnectionRefused {
		return &Refused{Text: errSecrets.Error()}
	}
	return err
}

// introduce sends the header message, and opens the stream of messages.
func introduce(ctx context.Context, conn *quic.Conn, o DialOptions, limits Limits) (*quicConn, error) {
	header := o.Header.Clone()
	if header == nil {
		header = http.Header{}
	}
	offered := o.Features
	// Deflate and API are only for WebSocket.
	offered.Deflate, offered.API, offered.Streams = false, false, offered.Tunnel
	offered.set(header)
	o.Instance.set(header)
	content, err := json.Marshal(header)
	if err != nil {
		return nil, err
	}
	control, err := conn.OpenStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	if err := control.SetDeadline(deadline); err != nil {
		return nil, err
	}
	if err := WritePacked(control, model.New("", "", headerName, headerName, content)); err != nil {
		return nil, err
	}
	answer, err := ReadPacked(control, maxHeader)
	if err != nil {
		return nil, err
	}
	var a headerAnswer
	if err := json.Unmarshal(answer.ContentData(), &a); err != nil {
		return nil, malformed("answer to the header: %w", err)
	}
	if !a.Ack {
		return nil, &Refused{Text: printable(a.Reason)}
	}
	messages, err := conn.OpenStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := io.WriteString(messages, streamUse); err != nil {
		return nil, err
	}
	return &quicConn{
		conn:     conn,
		control:  countedStream{Stream: control},
		messages: countedStream{Stream: messages},
		limits:   limits,
		features: offered.And(ParseFeatures(a.Header)),
	}, nil
}

// Caller is an edge that introduces itself over QUIC.
type Caller struct {
	Header http.Header
	Chain  []*x509.Certificate
	Remote net.Addr
	// Since is when its connection was established.
	Since time.Time
}

// Prepare decides about a caller: an error refuses it with that reason.
type Prepare func(c Caller) (AcceptOptions, error)

// QUICListener accepts connections of edges.
type QUICListener struct {
	transport *quic.Transport
	listener  *quic.Listener
	prepare   Prepare
	ready     chan accepted
	slots     *shares.Budget[netip.Prefix] // of connections without a header message
	secrets   *shares.Budget[netip.Prefix] // of TLS handshakes
	ctx       context.Context              // ends with the listener
	cancel    context.CancelFunc
	wg        sync.WaitGroup
	paused    atomic.Bool
}

type accepted struct {
	conn   Conn
	header http.Header
	chain  []*x509.Certificate
}

// ListenQUIC listens on a UDP address. config must request client certificates. limits apply until prepare returns the
// edge's. What edges send and nobody reads is counted in memory.
func ListenQUIC(addr string, config *tls.Config, limits Limits, memory *shares.Memory, prepare Prepare) (*QUICListener,
	error) {
	config = config.Clone()
	config.MinVersion, config.NextProtos = tls.VersionTLS13, []string{alpn}
	secrets := shares.NewBudget[netip.Prefix](secretsMax, sourceSecretsMax)
	counting := quicConfig(limits.withDefaults(), 2, streamWindow)
	counting.HandshakeIdleTimeout = secretsTimeout
	counting.Tracer = func(ctx context.Context, _ bool, _ quic.ConnectionID) qlogwriter.Trace {
		return ctx.Value(unreadKey{}).(*unread)
	}
	transport, err := listenUDP(addr)
	if err != nil {
		return nil, fmt.Errorf("listen for QUIC on %s: %w", addr, err)
	}
	transport.VerifySourceAddress = func(net.Addr) bool { return secrets.Taken() >= spoofedMax }
	l := &QUICListener{
		transport: transport,
		prepare:   prepare,
		ready:     make(chan accepted),
		slots:     shares.NewBudget[netip.Prefix](handshakesMax, sourceHandshakesMax),
		secrets:   secrets,
	}
	transport.ConnContext = func(ctx context.Context, c *quic.ClientInfo) (context.Context, error) {
		from := sourceaddr.Of(c.RemoteAddr)
		if l.paused.Load() {
			return nil, errPaused
		}
		if !secrets.Take(from, 1) {
			return nil, errSecrets
		}
		u := newUnread(memory)
		u.leave = sync.OnceFunc(func() { secrets.Return(from, 1) })
		// QUIC does not say that a connection has ended which it could not add.
		u.expiry = time.AfterFunc(4*defaultHandshake, u.leave)
		return context.WithValue(ctx, unreadKey{}, u), nil
	}
	l.listener, err = transport.Listen(config, counting)
	if err != nil {
		_ = closeUDP(transport)
		return nil, fmt.Errorf("listen for QUIC on %s: %w", addr, err)
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.wg.Go(l.run)
	return l, nil
}

// Addr returns the listener's address.
func (l *QUICListener) Addr() net.Addr { return l.listener.Addr() }

// Close closes the listener and all of its connections.
func (l *QUICListener) Close() error {
	l.cancel()
	err := l.listener.Close()
	l.wg.Wait()
	return errors.Join(err, closeUDP(l.transport))
}

// Pause refuses new connections, or no more. Those that are open go on.
func (l *QUICListener) Pause(on bool) { l.paused.Store(on) }

func listenUDP(addr string) (*quic.Transport, error) {
	to, err := net.ResolveUDPAddr("udp", addr)
	if err != nil {
		return nil, err
	}
	conn, err := net.ListenUDP("udp", to)
	if err != nil {
		return nil, err
	}
	return &quic.Transport{Conn: conn}, nil
}

func closeUDP(t *quic.Transport) error { return errors.Join(t.Close(), t.Conn.Close()) }

// Accept returns the next accepted edge, with its headers and certificates, or an error when the listener or ctx ends.
// Slow handshakes do not delay others.
func (l *QUICListener) Accept(ctx context.Context) (Conn, http.Header, []*x509.Certificate, error) {
	select {
	case a := <-l.ready:
		return a.conn, a.header, a.chain, nil
	case <-l.ctx.Done():
		return nil, nil, nil, net.ErrClosed
	case <-ctx.Done():
		return nil, nil, nil, ctx.Err()
	}
}

func (l *QUICListener) run() {
	defer l.cancel()
	for {
		conn, err := l.listener.Accept(l.ctx)
		if err != nil {
			return
		}
		u := unreadOf(conn)
		u.established()
		context.AfterFunc(u.ctx, func() {
			_ = conn.CloseWithError(CloseTryLater, cutReason(shares.ErrUnread.Error()))
		})
		since, from := time.Now(), sourceaddr.Of(conn.RemoteAddr())
		if !l.slots.Take(from, 1) {
			_ = conn.CloseWithError(CloseTryLater, "too many connections at once")
			continue
		}
		l.wg.Go(func() {
			defer l.slots.Return(from, 1)
			l.receive(conn, since)
		})
	}
}

// receive does the handshake of one connection.
func (l *QUICListener) receive(conn *quic.Conn, since time.Time) {
	ctx, cancel := context.WithTimeout(l.ctx, defaultHandshake)
	defer cancel()
	a, err := l.welcome(ctx, conn, since)
	if err == nil {
		unreadOf(conn).welcomed()
	}
	if err != nil && l.ctx.Err() != nil { // not the edge's fault
		_ = conn.CloseWithError(CloseGoingAway, "")
		return
	}
	if err != nil {
		_ = conn.CloseWithError(ClosePolicy, cutReason(printable(err.Error())))
		return
	}
	select {
	case l.ready <- a:
	case <-l.ctx.Done():
		_ = a.conn.Close(CloseGoingAway, "")
	}
}

// welcome reads the header message, answers it, and accepts the stream of messages.
func (l *QUICListener) welcome(ctx context.Context, conn *quic.Conn, since time.Time) (accepted, error) {
	stream, err := conn.AcceptStream(ctx)
	if err != nil {
		return accepted{}, err
	}
	control := countedStream{stream, unreadOf(conn)}
	deadline, _ := ctx.Deadline()
	if err := control.SetDeadline(deadline); err != nil {
		return accepted{}, err
	}
	m, err := ReadPacked(control, maxHeader)
	if err != nil {
		return accepted{}, err
	}
	header, err := readHeader(m)
	if err != nil {
		return accepted{}, err
	}
	chain := conn.ConnectionState().TLS.PeerCertificates
	o, err := l.prepare(Caller{Header: header, Chain: chain, Remote: conn.RemoteAddr(), Since: since})
	if err != nil {
		return accepted{}, refuse(ctx, conn, control, m, err)
	}
	can := o.Features
	can.Deflate, can.API, can.Streams = false, false, can.Tunnel
	agreed := can.And(ParseFeatures(header))
	answer := http.Header{}
	agreed.set(answer)
	if err := answerHeader(control, m, headerAnswer{Ack: true, Header: answer}); err != nil {
		return accepted{}, err
	}
	if stream, err = conn.AcceptStream(ctx); err != nil {
		return accepted{}, err
	}
	messages := countedStream{stream, unreadOf(conn)}
	if err := messages.SetReadDeadline(deadline); err != nil {
		return accepted{}, err
	}
	use := make([]byte, len(streamUse))
	if _, err := io.ReadFull(messages, use); err != nil {
		return accepted{}, err
	}
	if string(use) != streamUse {
		return accepted{}, malformed("a stream for %q is not supported", use)
	}
	c := &quicConn{
		conn:     conn,
		control:  control,
		messages: messages,
		limits:   o.Limits.withDefaults(),
		features: agreed,
		onPing:   o.OnPing,
	}
	return accepted{c.start(), header, chain}, nil
}

func readHeader(m *model.Message) (http.Header, error) {
	if m.Route.Resource != headerName || m.Route.Operation != headerName {
		return nil, malformed("%s %s came where the header was expected", m.Route.Operation, m.Route.Resource)
	}
	var sent map[string][]string
	if err := json.Unmarshal(m.ContentData(), &sent); err != nil {
		return nil, malformed("header: %w", err)
	}
	header := http.Header{}
	for name, values := range sent {
		for _, v := range values {
			header.Add(name, v)
		}
	}
	return header, nil
}

func answerHeader(control io.Writer, m *model.Message, a headerAnswer) error {
	content, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return WritePacked(control, m.Respond(content))
}

// refuse refuses an edge, and gives it time to read why.
func refuse(ctx context.Context, conn *quic.Conn, control io.WriteCloser, m *model.Message, why error) error {
	if err := answerHeader(control, m, headerAnswer{Reason: why.Error()}); err != nil {
		return err
	}
	_ = control.Close()
	select {
	case <-conn.Context().Done():
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
	return why
}
