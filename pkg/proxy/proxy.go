// Package proxy opens the WebSockets of the link and of tunnels through HTTP proxies.
//
// It promises that no answer of a proxy, or of anyone on the way to it, stops the caller or makes it hold more than 64
// KiB, and that a proxy that refuses is a *Refused with its HTTP status.
package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gorilla/websocket"
)

// maxAnswer limits the answer to CONNECT.
const maxAnswer = 64 << 10

var errLarge = fmt.Errorf("the answer to CONNECT is larger than %d KiB", maxAnswer>>10)

// Refused means that a proxy answered CONNECT with another status than 200.
type Refused struct {
	// Proxy is its host and port; never its password.
	Proxy  string
	Status int
}

func (e *Refused) Error() string {
	return "the proxy " + e.Proxy + " answers " + e.Answer()
}

// Answer is the status and its standard text; the proxy's own text is not used.
func (e *Refused) Answer() string {
	return strings.TrimSpace(fmt.Sprintf("HTTP %d %s", e.Status, http.StatusText(e.Status)))
}

// Remedy says what a person can do.
func (e *Refused) Remedy() string {
	const where = "HTTPS_PROXY and NO_PROXY are in the environment of the service (systemctl edit edgecore)"
	switch e.Status {
	case http.StatusProxyAuthRequired:
		return "put a user name and password that it accepts into HTTPS_PROXY (http://USER:PASSWORD@HOST:PORT); " +
			where
	case http.StatusForbidden, http.StatusMethodNotAllowed:
		return "have the proxy allow CONNECT to this address and port, or put the cloud's host into NO_PROXY; " + where
	}
	return "check that the proxy can reach this address and port, or put the cloud's host into NO_PROXY; " + where
}

// Dial connects to an address.
type Dial func(ctx context.Context, network, addr string) (net.Conn, error)

// Use makes dialer connect with plain, which may be nil for TCP, and through the proxy that choose returns for a
// request; choose may be nil for none. Use sets Proxy and NetDialContext of dialer, which is good for one dial then.
//
// The dialer's own CONNECT is not used: it panics if a proxy refuses without a text, and reads answers of any size.
func Use(dialer *websocket.Dialer, choose func(*http.Request) (*url.URL, error), plain Dial) {
	if plain == nil {
		plain = (&net.Dialer{}).DialContext
	}
	var via *url.URL
	dialer.Proxy = func(r *http.Request) (*url.URL, error) {
		if choose == nil {
			return nil, nil
		}
		u, err := choose(r)
		if err != nil || u == nil || u.Scheme != "http" && u.Scheme != "https" {
			return u, err // SOCKS is the dialer's
		}
		via = u
		return nil, nil
	}
	dialer.NetDialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if via == nil {
			return plain(ctx, network, addr)
		}
		return dial(ctx, plain, via, addr)
	}
}

// dial connects to addr through an HTTP proxy.
func dial(ctx context.Context, plain Dial, via *url.URL, addr string) (net.Conn, error) {
	conn, err := plain(ctx, "tcp", hostPort(via))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	through, err := connect(ctx, conn, via, addr)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err == nil {
		return through, nil
	}
	_ = conn.Close()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return nil, err
}

// connect asks a proxy to connect to addr.
func connect(ctx context.Context, conn net.Conn, via *url.URL, addr string) (net.Conn, error) {
	if via.Scheme == "https" {
		secure := tls.Client(conn, &tls.Config{ServerName: via.Hostname(), MinVersion: tls.VersionTLS12})
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		conn = secure
	}
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: addr}, Host: addr, Header: http.Header{}}
	if user := via.User; user != nil {
		password, _ := user.Password()
		req.Header.Set("Proxy-Authorization",
			"Basic "+base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)))
	}
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	// The reader may be dropped with what it has read ahead: a server of TLS says nothing before it is asked.
	limited := &io.LimitedReader{R: conn, N: maxAnswer}
	answer, err := http.ReadResponse(bufio.NewReader(limited), req)
	switch {
	case err != nil && limited.N <= 0:
		return nil, errLarge
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return nil, fmt.Errorf("the proxy closes the connection: %w", io.EOF)
	case err != nil:
		return nil, err
	case answer.StatusCode != http.StatusOK:
		return nil, &Refused{Proxy: via.Host, Status: answer.StatusCode}
	}
	return conn, nil // the body is the connection
}

// hostPort returns where a proxy listens.
func hostPort(u *url.URL) string {
	port := u.Port()
	switch {
	case port != "":
	case u.Scheme == "https":
		port = "443"
	default:
		port = "80"
	}
	return net.JoinHostPort(u.Hostname(), port)
}
