package lifecycle

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	// dialTimeout bounds the dialing of a connection: an address may swallow packets.
	dialTimeout = 30 * time.Second
	// maxDiscard is how much of an answer is read, so that the server may finish it.
	maxDiscard = 10 << 10
	// maxRedirects is how many redirects are followed.
	maxRedirects = 10
	// maxHead bounds the head of an answer.
	maxHead = 64 << 10
	// http2Window is how much of an answer over HTTP/2 may come before it is read; it is the protocol's smallest.
	http2Window = 64 << 10
	// http2Stuck is for how long a connection of HTTP/2 may take nothing.
	http2Stuck = 10 * time.Second
)

// newHTTPClient makes a client that keeps no connections. It follows redirects on the same host only. http2 is HTTP/2
// from the first byte on, without TLS.
func newHTTPClient(http2 bool) *http.Client {
	transport := &http.Transport{
		DialContext:       (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // as documented: the certificate is not checked
		DisableKeepAlives: true,
		// What comes from a pod is bounded: by default, package net/http accepts a header of 10 MiB, whose maps take
		// several times as much, and 4 MiB of an unread body.
		MaxResponseHeaderBytes: maxHead,
		HTTP2: &http.HTTP2Config{
			MaxReceiveBufferPerStream: http2Window, MaxReceiveBufferPerConnection: http2Window,
			// A pod that sends and reads nothing would hold the connection for ever.
			WriteByteTimeout: http2Stuck,
		},
	}
	if http2 {
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	return &http.Client{
		Transport: transport,
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if req.URL.Hostname() != via[0].URL.Hostname() || len(via) >= maxRedirects {
				return http.ErrUseLastResponse
			}
			return nil
		},
	}
}

// get sends the request of a handler; any answer is success.
func (r *Runner) get(ctx context.Context, t Target, h *v1.HTTPGetAction) error {
	req, err := r.request(ctx, t, h)
	if err != nil {
		return err
	}
	client := r.http
	if h.Protocol != nil && *h.Protocol == v1.HTTPProtocolHTTP2 {
		client = r.http2
	}
	err = send(client, req)
	if !errors.Is(err, http.ErrSchemeMismatch) {
		return err
	}
	// The server speaks no TLS. It is asked once more without, and is not told who asks.
	req.URL.Scheme = "http"
	req.Header.Del("Authorization")
	if err := send(client, req); err != nil {
		return err
	}
	if t.FellBack != nil {
		t.FellBack(req.URL.Host)
	}
	return nil
}

func send(client *http.Client, req *http.Request) error {
	resp, err := client.Do(req)
	if err != nil {
		if req.Context().Err() != nil {
			return req.Context().Err()
		}
		return err
	}
	defer func() { _ = resp.Body.Close() }() // nothing follows from it
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxDiscard))
	return nil
}

func (r *Runner) request(ctx context.Context, t Target, h *v1.HTTPGetAction) (*http.Request, error) {
	host := h.Host
	if host == "" {
		host = t.Address
	}
	if host == "" {
		return nil, errors.New("the pod has no address to send the request to")
	}
	port, err := portOf(h.Port, t.Ports)
	if err != nil {
		return nil, err
	}
	at, err := url.Parse(h.Path)
	if err != nil {
		at = &url.URL{Path: h.Path} // it is sent as it is written
	}
	if at.Path != "" && !strings.HasPrefix(at.Path, "/") {
		at.Path = "/" + at.Path
	}
	at.Scheme, at.Host = "http", net.JoinHostPort(host, strconv.Itoa(port))
	if strings.EqualFold(string(h.Scheme), string(v1.URISchemeHTTPS)) {
		at.Scheme = "https"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	req.Header.Set("User-Agent", r.userAgent)
	req.Header.Set("Accept", "*/*")
	named := map[string]bool{}
	for _, header := range h.HTTPHeaders {
		if key := http.CanonicalHeaderKey(header.Name); !named[key] {
			named[key] = true
			req.Header.Del(key) // what the pod says replaces what is sent otherwise
		}
		req.Header.Add(header.Name, header.Value)
	}
	if name := req.Header.Get("Host"); name != "" {
		req.Host = name
	}
	return req, nil
}

// portOf resolves a port, which may be a number, the name of one of the container's ports, or a number as text.
func portOf(port intstr.IntOrString, ports []v1.ContainerPort) (int, error) {
	n := port.IntValue()
	if port.Type == intstr.String {
		for _, p := range ports {
			if p.Name == port.StrVal {
				n = int(p.ContainerPort)
				break
			}
		}
	}
	if n < 1 || n > 65535 {
		return 0, fmt.Errorf("port %q is neither a number between 1 and 65535 nor the name of a port of the container",
			port.String())
	}
	return n, nil
}
