package prober

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"time"
)

// oneShot is an http.RoundTripper for HTTP/1.1 without TLS that opens a connection for each request. The one of package
// net/http is made to keep connections, for which each has two goroutines and more; a probe keeps none, and there may
// be a hundred a second. What it does not know (TLS, HTTP/2) is left to others.
type oneShot struct {
	dialer *net.Dialer
	others http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (o *oneShot) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "http" {
		return o.others.RoundTrip(req)
	}
	address := req.URL.Host
	if req.URL.Port() == "" { // after a redirect
		address = net.JoinHostPort(req.URL.Hostname(), "80")
	}
	ctx := req.Context()
	conn, err := o.dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	// Whatever ends the context ends what waits for the connection.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // one that is closed does not wait
	resp, err := ask1(conn, req)
	if err != nil {
		stop()
		_ = conn.Close() // the error is reported
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	resp.Body = &lastBody{ReadCloser: resp.Body, ctx: ctx, stop: stop, conn: conn}
	return resp, nil
}

// ask1 sends a request and reads the head of its answer.
func ask1(conn net.Conn, req *http.Request) (*http.Response, error) {
	once := *req
	once.Close = true
	if err := once.Write(conn); err != nil {
		return nil, err
	}
	r := bufio.NewReaderSize(&io.LimitedReader{R: conn, N: maxHead + maxOutput}, 1024)
	for {
		resp, err := http.ReadResponse(r, req)
		if err != nil || resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols {
			return resp, err
		}
	}
}

// maxHead bounds the head of an answer.
const maxHead = 64 << 10

// lastBody closes the connection after the answer's body.
type lastBody struct {
	io.ReadCloser
	ctx  context.Context
	stop func() bool
	conn net.Conn
}

// Read implements io.Reader.
func (b *lastBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF && b.ctx.Err() != nil {
		err = b.ctx.Err()
	}
	return n, err
}

// Close implements io.Closer. It does not read what is left of the body.
func (b *lastBody) Close() error {
	b.stop()
	return b.conn.Close()
}
