package forward

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/edgecore-io/edgecore/pkg/ratelimit"
)

const (
	// bodyTime is how long the body of a request may take. It has at most 3 MiB, which come from this device.
	bodyTime = time.Minute
	// writeTime is how long a client may take nothing of what it asked for.
	writeTime = time.Minute
)

// client is the client of a request. It limits how fast it sends, and how long it may take nothing, so that it does not
// keep a stream for ever.
type client struct {
	http.ResponseWriter
	control *http.ResponseController
	ctx     context.Context
	uploads *ratelimit.Limiter[string]
	account string
}

// Unwrap is for http.ResponseController.
func (c *client) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// Write implements http.ResponseWriter.
func (c *client) Write(p []byte) (int, error) {
	defer c.writing()()
	return c.ResponseWriter.Write(p)
}

// FlushError is for http.ResponseController.
func (c *client) FlushError() error {
	defer c.writing()()
	return c.control.Flush()
}

// writing begins a write, and returns what ends it. Between writes there is no deadline: a watch may be silent. A
// writer that knows no deadlines, as in tests, has none.
func (c *client) writing() (end func()) {
	if c.control.SetWriteDeadline(time.Now().Add(writeTime)) != nil {
		return func() {}
	}
	return func() { _ = c.control.SetWriteDeadline(time.Time{}) } // it is known to work
}

// pay waits until an account may send n more bytes. n is at most uploadBurst.
func (c *client) pay(n int) error {
	now := time.Now()
	if err := c.uploads.Of(c.account, now).WaitN(c.ctx, n); err != nil {
		return fmt.Errorf("send the request at the rate of its account: %w", err)
	}
	return nil
}

// body returns the limited body of the request.
func (c *client) body(inner io.ReadCloser) io.ReadCloser {
	return &body{ReadCloser: inner, client: c, limited: c.control.SetReadDeadline(time.Now().Add(bodyTime)) == nil}
}

// body is the body of a request.
type body struct {
	io.ReadCloser
	client *client
	// limited: there is a deadline, which must be lifted at the end of the body, since it would end the connection.
	limited bool
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p[:min(len(p), uploadBurst)])
	if errors.Is(err, io.EOF) && b.limited { // otherwise the server still reads the rest
		b.limited = false
		_ = b.client.control.SetReadDeadline(time.Time{}) // as above
	}
	if n > 0 {
		if paid := b.client.pay(n); paid != nil {
			return n, paid
		}
	}
	return n, err
}

// Hijack implements http.Hijacker, for requests that change to another protocol.
func (c *client) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := c.control.Hijack()
	if err != nil {
		return nil, nil, err
	}
	return &upgraded{Conn: conn, rest: rw.Reader, client: c}, rw, nil
}

// upgraded is the client's connection after the change.
type upgraded struct {
	net.Conn
	// rest has what was read of the connection before the change; nil once it is empty.
	rest   *bufio.Reader
	client *client
}

// Read implements net.Conn.
func (u *upgraded) Read(p []byte) (n int, err error) {
	p = p[:min(len(p), uploadBurst)]
	if u.rest != nil {
		if kept := u.rest.Buffered(); kept > 0 {
			n, err = u.rest.Read(p[:min(len(p), kept)])
		} else {
			u.rest = nil
		}
	}
	if u.rest == nil {
		n, err = u.Conn.Read(p)
	}
	if n > 0 {
		if paid := u.client.pay(n); paid != nil {
			return n, paid
		}
	}
	return n, err
}

// CloseWrite ends one direction, if the connection can be half-closed. The client has a minute to end the other one.
func (u *upgraded) CloseWrite() error {
	if err := u.SetReadDeadline(time.Now().Add(writeTime)); err != nil {
		return err
	}
	if half, ok := u.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return u.Close()
}
