// Package edgestream speaks the tunnel of KubeEdge's CloudStream and EdgeStream (docs/wire.md, Stream tunnel of
// KubeEdge), over which the cloud makes requests to a node's kubelet API.
//
// It owns the messages and the WebSocket that carries them. It promises that no peer makes it hold more than one
// message of 1 MiB, and that the tunnel ends when a peer is silent for 30 s (the cloud: 2 minutes) or does not take a
// message within 30 s.
package edgestream

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/edgecore-io/edgecore/pkg/proxy"
)

// Names of the handshake.
const (
	// Path is the path of the URL at which the cloud accepts tunnels.
	Path = "/v1/kubeedge/connect"
	// HeaderNode names the node, HeaderIP is its address.
	HeaderNode = "SessionHostNameOverride"
	HeaderIP   = "SessionInternalIP"
)

// KubeletAPI is where the cloud has a node make its requests: KubeEdge's nodes serve it there without
// authentication.
const KubeletAPI = "127.0.0.1:10350"

// Kind is the type of a message.
type Kind uint64

// The kinds of messages. Logs, Exec, Metrics and Attach carry a Connect and begin a connection, Remove ends it. Close
// ends the tunnel, and carries the reason. Nodes before KubeEdge v1.14 do not know Attach.
const (
	Logs Kind = iota
	Exec
	Metrics
	Data
	Remove
	Close
	Attach
)

const (
	// MaxData is the size of a message's data.
	MaxData = 1 << 20
	// header is the most that precedes the data: two numbers.
	header = 2 * binary.MaxVarintLen64
	// PingInterval is how often each end sends a ping. KubeEdge's cloud sends none.
	PingInterval = 5 * time.Second
	// silence is how long nothing may come from a node, and cloudSilence from the cloud: KubeEdge's reads nothing, and
	// so answers no ping, while a caller does not read.
	silence      = 30 * time.Second
	cloudSilence = 2 * time.Minute
	// writeTimeout is how long a message may take to leave.
	writeTimeout = 30 * time.Second
	handshake    = 30 * time.Second
	buffer       = 4 << 10
)

// Message is one of the tunnel. ID is its connection's.
type Message struct {
	ID   uint64
	Kind Kind
	Data []byte
}

// Encode returns the text of a message.
func (m *Message) Encode() []byte {
	out := make([]byte, 0, header+len(m.Data))
	out = binary.AppendUvarint(out, m.ID)
	out = binary.AppendUvarint(out, uint64(m.Kind))
	return append(out, m.Data...)
}

// Decode reads a message; its data are part of text.
func Decode(text []byte) (m Message, err error) {
	id, n := binary.Uvarint(text)
	if n <= 0 {
		return m, errors.New("a message of the stream tunnel has no connection ID")
	}
	kind, k := binary.Uvarint(text[n:])
	if k <= 0 {
		return m, errors.New("a message of the stream tunnel has no type")
	}
	m = Message{ID: id, Kind: Kind(kind), Data: text[n+k:]}
	if len(m.Data) > MaxData {
		return Message{}, fmt.Errorf("a message of the stream tunnel has %d bytes, limit %d", len(m.Data), MaxData)
	}
	return m, nil
}

// Connect is the content of a message that begins a connection: a request for the node to make.
type Connect struct {
	ID     uint64      `json:"MessID"`
	URL    URL         `json:"url"`
	Header http.Header `json:"header"`
	// Method is empty, for GET, with Logs and Metrics.
	Method string `json:"method,omitempty"`
}

// URL is a url.URL as JSON has it: with the names of its fields.
type URL struct {
	Scheme, Host, Path, RawPath, RawQuery string
}

// Request makes the request of a connection. Only the path and query of its URL count.
func (c *Connect) Request(ctx context.Context) (*http.Request, error) {
	u := url.URL{Scheme: "http", Host: KubeletAPI, Path: c.URL.Path, RawPath: c.URL.RawPath, RawQuery: c.URL.RawQuery}
	method := c.Method
	if method == "" {
		method = http.MethodGet
	}
	r, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	if c.Header != nil {
		r.Header = c.Header
	}
	return r, nil
}

// Conn is a tunnel. One goroutine may read; Write may be called from any.
type Conn struct {
	ws *websocket.Conn
	// silence is how long nothing may come.
	silence time.Duration

	mu sync.Mutex // held while writing
}

func newConn(ws *websocket.Conn, silence time.Duration) *Conn {
	c := &Conn{ws: ws, silence: silence}
	ws.SetReadLimit(header + MaxData)
	ws.SetPongHandler(func(string) error { return c.extendDeadline() })
	ws.SetPingHandler(func(text string) error {
		if err := c.extendDeadline(); err != nil {
			return err
		}
		err := ws.WriteControl(websocket.PongMessage, []byte(text), time.Now().Add(time.Second))
		if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
			return nil // a message is being written, which is as good
		}
		return err
	})
	return c
}

// extendDeadline moves the deadline for the peer's next message.
func (c *Conn) extendDeadline() error { return c.ws.SetReadDeadline(time.Now().Add(c.silence)) }

// Accept upgrades a request of a node. On an error the request has been answered. The caller checks before who may
// connect.
func Accept(w http.ResponseWriter, r *http.Request) (*Conn, error) {
	upgrader := websocket.Upgrader{HandshakeTimeout: handshake, ReadBufferSize: buffer, WriteBufferSize: buffer}
	ws, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return nil, fmt.Errorf("accept the stream tunnel of %s: %w", r.RemoteAddr, err)
	}
	return newConn(ws, silence), nil
}

// DialOptions say where a node connects to.
type DialOptions struct {
	// Server is the cloud's HOST:PORT, Node and IP are the node's name and address.
	Server, Node, IP string
	TLS              *tls.Config
	// Proxy chooses the proxy; nil is none.
	Proxy func(*http.Request) (*url.URL, error)
}

// Dial connects a node to the cloud.
func Dial(ctx context.Context, o DialOptions) (*Conn, error) {
	config := o.TLS.Clone()
	config.NextProtos = []string{"http/1.1"} // HTTP/2 has no upgrade
	dialer := websocket.Dialer{
		TLSClientConfig: config, HandshakeTimeout: handshake, ReadBufferSize: buffer, WriteBufferSize: buffer,
	}
	proxy.Use(&dialer, o.Proxy, nil)
	at := url.URL{Scheme: "wss", Host: o.Server, Path: Path}
	ws, resp, err := dialer.DialContext(ctx, at.String(), http.Header{HeaderNode: {o.Node}, HeaderIP: {o.IP}})
	if err != nil {
		if resp != nil {
			err = fmt.Errorf("%w: %s", err, resp.Status)
		}
		return nil, fmt.Errorf("connect to %s: %w", o.Server, err)
	}
	return newConn(ws, cloudSilence), nil
}

// KeepAlive sends pings until ctx ends.
func (c *Conn) KeepAlive(ctx context.Context) {
	ticker := time.NewTicker(PingInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		// It fails when a message takes longer to leave, which is a sign of life; or the tunnel has ended.
		_ = c.ws.WriteControl(websocket.PingMessage, []byte("ping you"), time.Now().Add(time.Second))
	}
}

// Read reads the next message. After an error the tunnel has ended.
func (c *Conn) Read() (Message, error) {
	if err := c.extendDeadline(); err != nil {
		return Message{}, err
	}
	kind, text, err := c.ws.ReadMessage()
	if err != nil {
		return Message{}, err
	}
	if kind != websocket.TextMessage {
		return Message{}, fmt.Errorf("the stream tunnel got a WebSocket message of type %d, want text", kind)
	}
	return Decode(text)
}

// Write writes a message. An error ends the tunnel.
func (c *Conn) Write(m Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.ws.SetWriteDeadline(time.Now().Add(writeTimeout))
	if err == nil {
		err = c.ws.WriteMessage(websocket.TextMessage, m.Encode())
	}
	if err != nil {
		_ = c.Close()
	}
	return err
}

// RemoteAddr is the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return c.ws.RemoteAddr() }

// Close ends the tunnel. It does not wait for the peer.
func (c *Conn) Close() error { return CloseAtOnce(c.ws.NetConn()) }

// CloseAtOnce closes a connection. One of TLS ends without the message that says so: tls.Conn.Close waits up to 5 s for
// a peer that does not read.
func CloseAtOnce(c net.Conn) error {
	if over, ok := c.(*tls.Conn); ok {
		return over.NetConn().Close()
	}
	return c.Close()
}
