package streaming

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
)

const (
	// dialTimeout bounds the way to the runtime, which is on this device, until it has answered.
	dialTimeout = 30 * time.Second
	// goodbye is how long a client may take to close its end, once the stream is over.
	goodbye = 2 * time.Second
	// maxAnswer is how much of a refusal by the runtime is passed on.
	maxAnswer = 16 << 10
	// bearerProtocol is how browsers send a token with a WebSocket; it is for this server alone.
	bearerProtocol = "base64url.bearer.authorization.k8s.io."
)

var errUpgrade = refuse(http.StatusBadRequest, "Upgrade request required: this path streams over SPDY or WebSocket")

// upgrades reports whether a request asks for another protocol on its connection.
func upgrades(r *http.Request) bool {
	for _, line := range r.Header["Connection"] {
		for token := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(token), "upgrade") {
				return r.Header.Get("Upgrade") != ""
			}
		}
	}
	return false
}

func isWebSocket(r *http.Request) bool {
	return upgrades(r) && strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// passed are the headers that the runtime gets of a request: what the two protocols need, and no credentials. It is
// pure.
func passed(in http.Header) http.Header {
	out := http.Header{"Connection": {"Upgrade"}}
	for _, name := range []string{"Upgrade", "X-Stream-Protocol-Version", "Sec-Websocket-Key", "Sec-Websocket-Version",
		"Sec-Websocket-Extensions", "Origin", "User-Agent"} {
		if v := in[name]; len(v) > 0 {
			out[name] = slices.Clone(v)
		}
	}
	for _, line := range in["Sec-Websocket-Protocol"] {
		var kept []string
		for p := range strings.SplitSeq(line, ",") {
			if p = strings.TrimSpace(p); p != "" && !strings.HasPrefix(p, bearerProtocol) {
				kept = append(kept, p)
			}
		}
		if len(kept) > 0 {
			out.Add("Sec-Websocket-Protocol", strings.Join(kept, ", "))
		}
	}
	return out
}

// join connects a client to a stream of the runtime, until one of the two ends it, nothing flows for the idle timeout,
// or the request's context ends.
func (s *Server) join(w http.ResponseWriter, r *http.Request, address string) error {
	target, err := url.Parse(address)
	if err != nil || target.Host == "" {
		return fmt.Errorf("the container runtime's streaming address %q is invalid", address)
	}
	backend, resp, rest, err := ask(r, target)
	if err != nil {
		return refuse(http.StatusBadGateway, "the stream of the container runtime at %s does not answer: %v",
			target.Host, err)
	}
	defer backend.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		resp.Body.Close()
		return refuse(max(resp.StatusCode, http.StatusOK), "%s", bytes.TrimSpace(text))
	}
	client, fromClient, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return fmt.Errorf("this connection cannot be upgraded: %w", err)
	}
	defer client.Close()
	if err := client.SetDeadline(time.Time{}); err != nil {
		return nil // it has gone
	}
	if err := accept(client, resp); err != nil {
		return nil
	}
	s.pump(r.Context(), end{client, fromClient.Reader}, end{backend, rest})
	return nil
}

// ask sends a request to the runtime's stream and reads the head of the answer; what comes after that is read from
// rest.
func ask(r *http.Request, target *url.URL) (conn net.Conn, resp *http.Response, rest *bufio.Reader, err error) {
	ctx, cancel := context.WithTimeout(r.Context(), dialTimeout)
	defer cancel()
	switch target.Scheme {
	case "http":
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", withPort(target, "80"))
	case "https":
		conn, err = (&tls.Dialer{
			Config: &tls.Config{NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12},
		}).DialContext(ctx, "tcp", withPort(target, "443"))
	default:
		err = fmt.Errorf("scheme %q: want http or https", target.Scheme)
	}
	if err != nil {
		return nil, nil, nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	req := &http.Request{
		Method:     r.Method,
		URL:        target,
		Host:       target.Host,
		Header:     passed(r.Header),
		Proto:      "HTTP/1.1",
		ProtoMajor: 1,
		ProtoMinor: 1,
	}
	if err = req.Write(conn); err == nil {
		rest = bufio.NewReader(conn)
		resp, err = http.ReadResponse(rest, req)
	}
	if err != nil {
		conn.Close()
		return nil, nil, nil, err
	}
	return conn, resp, rest, nil
}

func withPort(u *url.URL, port string) string {
	if u.Port() != "" {
		return u.Host
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// accept tells the client that its connection has changed the protocol, as the runtime has said it.
func accept(client net.Conn, resp *http.Response) error {
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 101 Switching Protocols\r\n")
	if err := resp.Header.Write(&head); err != nil {
		return err
	}
	head.WriteString("\r\n")
	_, err := client.Write(head.Bytes())
	return err
}

// end is one end of a stream: a connection, part of which may have been read already.
type end struct {
	net.Conn
	reader *bufio.Reader
}

// pump copies both ways until one of the two is done, and closes both. A client whose stream has ended gets what is on
// its way, and a moment to say goodbye: a connection that is closed with something unread is reset.
func (s *Server) pump(ctx context.Context, client, backend end) {
	var last atomic.Int64 // when something flowed, since began
	began := time.Now()
	flow := func(to, from end, done chan<- error) {
		_, err := io.Copy(to.Conn, watched{from.reader, func() { last.Store(int64(time.Since(began))) }})
		done <- err
	}
	fromBackend, fromClient := make(chan error, 1), make(chan error, 1)
	go flow(client, backend, fromBackend)
	go flow(backend, client, fromClient)
	timer := time.NewTimer(s.opts.IdleTimeout)
	defer timer.Stop()
	stop := ctx.Done()
	for left, saying := 2, false; left > 0; {
		select {
		case err := <-fromBackend:
			left--
			if half, ok := client.Conn.(interface{ CloseWrite() error }); ok && err == nil && half.CloseWrite() == nil {
				saying = true
				timer.Reset(goodbye)
				continue
			}
		case <-fromClient:
			left--
		case <-stop:
			stop = nil
		case <-timer.C:
			if silent := time.Since(began) - time.Duration(last.Load()); !saying && silent < s.opts.IdleTimeout {
				timer.Reset(s.opts.IdleTimeout - silent)
				continue
			}
			klog.V(4).InfoS("Stream ended by this node", "client", client.RemoteAddr(), "idle", !saying)
		}
		client.Close()
		backend.Close()
	}
}

// watched reports each read.
type watched struct {
	r    io.Reader
	read func()
}

func (w watched) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	w.read()
	return n, err
}
