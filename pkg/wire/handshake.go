package wire

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gorilla/websocket"

	"github.com/edgecore-io/edgecore/pkg/proxy"
)

// DialOptions configures a connection to the cloud.
type DialOptions struct {
	// URL is wss://host:port/path, or for QUIC anything with host and port.
	URL string
	// TLS is not modified; the dial sets the application protocol.
	TLS *tls.Config
	// Header goes with the handshake; see the Header constants.
	Header http.Header
	// Proxy returns the proxy for a request, as http.ProxyFromEnvironment does; nil: none. QUIC ignores it.
	Proxy  func(*http.Request) (*url.URL, error)
	Limits Limits
	// Dial connects to the cloud or the proxy; nil: over TCP. QUIC ignores it.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// HandshakeTimeout is the timeout until the link is established; 0: 30 s.
	HandshakeTimeout time.Duration
	// Features are offered.
	Features Features
	// Instance is the run of this agent; the zero value is not sent.
	Instance Instance
}

const defaultHandshake = 30 * time.Second

// noBuffers makes gorilla keep no buffer for messages, which it does not write (wsConn.write).
type noBuffers struct{}

func (noBuffers) Get() any { return nil }
func (noBuffers) Put(any)  {}

func (o *DialOptions) handshakeTimeout() time.Duration {
	if o.HandshakeTimeout > 0 {
		return o.HandshakeTimeout
	}
	return defaultHandshake
}

// ProxyError is a failure of a proxy connection.
type ProxyError struct {
	// Proxy is its host and port; never its password.
	Proxy string
	Err   error
}

func (e *ProxyError) Error() string { return "through the proxy " + e.Proxy + ": " + e.Err.Error() }
func (e *ProxyError) Unwrap() error { return e.Err }

// DialWebSocket connects to a cloud. A refused handshake is *Refused.
func DialWebSocket(ctx context.Context, o DialOptions) (Conn, error) {
	header := o.Header.Clone()
	if header == nil {
		header = http.Header{}
	}
	o.Features.Streams = false // only for QUIC
	o.Features.set(header)
	o.Instance.set(header)
	ws, answer, err := upgrade(ctx, &o, header, websocket.Dialer{
		ReadBufferSize: buffer, WriteBufferPool: noBuffers{}, EnableCompression: o.Features.Deflate,
	})
	if err != nil {
		return nil, err
	}
	agreed := o.Features.And(ParseFeatures(answer))
	agreed.Deflate = agreed.Deflate && offersDeflate(answer)
	return newWebSocket(ws, true, o.Limits.withDefaults(), agreed, nil), nil
}

// upgrade connects and makes the connection a WebSocket. It completes dialer, and returns the answer's header.
func upgrade(
	ctx context.Context, o *DialOptions, header http.Header, dialer websocket.Dialer,
) (*websocket.Conn, http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, o.handshakeTimeout())
	defer cancel()
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.TLS != nil {
		config = o.TLS.Clone()
	}
	config.NextProtos = []string{"http/1.1"} // HTTP/2 has no upgrade
	via := ""
	// The link has its own pings: TCP keepalives would only cost bytes.
	plain := o.Dial
	if plain == nil {
		plain = (&net.Dialer{KeepAlive: -1}).DialContext
	}
	dialer.TLSClientConfig = config
	proxy.Use(&dialer, func(r *http.Request) (*url.URL, error) {
		if o.Proxy == nil {
			return nil, nil
		}
		u, err := o.Proxy(r)
		if u != nil {
			via = u.Host
		}
		return u, err
	}, func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := plain(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return count(c), nil
	})
	ws, resp, err := dialer.DialContext(ctx, o.URL, header)
	if err != nil {
		err = refusal(err, resp)
		if via != "" {
			err = &ProxyError{Proxy: via, Err: err}
		}
		return nil, nil, fmt.Errorf("connect to %s: %w", o.URL, err)
	}
	return ws, resp.Header, nil
}

// refusal converts an answer that is not an upgrade to an error with its text.
func refusal(err error, resp *http.Response) error {
	if resp == nil || resp.StatusCode == http.StatusSwitchingProtocols {
		return err
	}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 1024)) // gorilla keeps the first KB
	_ = resp.Body.Close()
	line, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
	return &Refused{Status: resp.StatusCode, Text: printable(line)}
}

// printable makes a peer's text fit for a log line.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\uFFFD' {
			return ' '
		}
		return r
	}, s)
	if len(s) > 256 {
		s = strings.ToValidUTF8(s[:256], "") + "..."
	}
	return strings.TrimSpace(s)
}

func offersDeflate(h http.Header) bool {
	for _, line := range h.Values("Sec-WebSocket-Extensions") {
		if strings.Contains(line, "permessage-deflate") {
			return true
		}
	}
	return false
}

// AcceptOptions configures the cloud's end of a connection.
type AcceptOptions struct {
	Limits Limits
	// Features are those that this end will use if the edge offers them.
	Features Features
	// Reading is shared by connections; nil: the connection has its own.
	Reading *ReadBuffers
	// OnPing is called for each ping from the edge, in the goroutine of Read; it must not block.
	OnPing func()
}

// AcceptWebSocket upgrades a request. On an error the request has been answered. The caller checks before who may
// connect. The handler should return and leave the Conn to another goroutine, which frees the server's buffers.
func AcceptWebSocket(w http.ResponseWriter, r *http.Request, o AcceptOptions) (Conn, error) {
	agreed := o.Features.And(ParseFeatures(r.Header))
	agreed.Deflate, agreed.Streams = agreed.Deflate && offersDeflate(r.Header), false
	header := http.Header{}
	agreed.set(header)
	upgrader := websocket.Upgrader{
		HandshakeTimeout: defaultHandshake, EnableCompression: agreed.Deflate, ReadBufferSize: acceptBuffer,
		WriteBufferPool: noBuffers{},
	}
	ws, err := upgrader.Upgrade(w, r, header)
	if err != nil {
		return nil, fmt.Errorf("accept a WebSocket from %s: %w", r.RemoteAddr, err)
	}
	c := newWebSocket(ws, false, o.Limits.withDefaults(), agreed, o.OnPing)
	if c.counter != nil {
		if c.counter.waiting = newWaiting(c.counter.Conn); c.counter.waiting != nil {
			c.arrivals = newArrivals(c, c.counter.waiting, o.Reading)
		}
	}
	return c, nil
}
