package prober

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

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// maxRedirects is how many redirects are followed.
const maxRedirects = 10

const (
	// http2Window is how much of an answer over HTTP/2 may come before it is read; it is the protocol's smallest.
	http2Window = 64 << 10
	// http2Stuck is for how long a connection of HTTP/2 may take nothing.
	http2Stuck = 10 * time.Second
)

// newTransport makes the transport of all HTTP probes. It keeps no connection, uses no proxy, and trusts any
// certificate: a probe checks for an answer, not for an identity.
func newTransport(d *net.Dialer) *http.Transport {
	return &http.Transport{
		DialContext:        d.DialContext,
		TLSClientConfig:    anyCertificate(),
		ForceAttemptHTTP2:  true,
		DisableKeepAlives:  true,
		DisableCompression: true,
		// What comes from a pod is bounded: by default, package net/http accepts a header of 10 MiB, whose maps take
		// several times as much, and 4 MiB of an unread body.
		MaxResponseHeaderBytes: maxHead,
		HTTP2: &http.HTTP2Config{
			MaxReceiveBufferPerStream: http2Window, MaxReceiveBufferPerConnection: http2Window,
			// A pod that sends and reads nothing would hold the connection for ever.
			WriteByteTimeout: http2Stuck,
		},
	}
}

// anyCertificate trusts anyone who answers. It leaves out the key exchanges that resist quantum computers: nothing is
// kept secret here, and without them a handshake is a quarter cheaper.
func anyCertificate() *tls.Config {
	return &tls.Config{
		InsecureSkipVerify: true, CurvePreferences: []tls.CurveID{
			tls.X25519, tls.CurveP256, tls.CurveP384, tls.CurveP521,
		},
	}
}

// overHTTP2 makes of a transport one that speaks HTTP/2 without TLS, and never asks whether the other end knows it.
func overHTTP2(t *http.Transport) *http.Transport {
	t.Protocols = new(http.Protocols)
	t.Protocols.SetUnencryptedHTTP2(true)
	return t
}

// sameHost follows redirects within the host that was asked first; the answer of any other is taken as it is.
func sameHost(req *http.Request, via []*http.Request) error {
	if req.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= maxRedirects {
		return fmt.Errorf("stopped after %d redirects", maxRedirects)
	}
	return nil
}

// get asks for a page; it is well when the answer's status is from 200 to 399.
func (a *attempts) get(ctx context.Context, q *ask, h *v1.HTTPGetAction) (result, string, error) {
	req, err := a.request(ctx, q, h)
	if err != nil {
		return unknown, "", err
	}
	transport := a.transport
	if ptr.Deref(h.Protocol, v1.HTTPProtocolHTTP1) == v1.HTTPProtocolHTTP2 {
		transport = a.http2
	}
	client := &http.Client{Transport: transport, Timeout: q.timeout(), CheckRedirect: sameHost}
	resp, err := client.Do(req)
	if err != nil {
		return failure, err.Error(), nil
	}
	defer func() { _ = resp.Body.Close() }() // what was wanted was read
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxOutput))
	if err != nil {
		return failure, err.Error(), nil
	}
	switch code := resp.StatusCode; {
	case code >= 300 && code < 400:
		return warning, fmt.Sprintf("Probe terminated redirects, Response body: %s", body), nil
	case code >= 200 && code < 300:
		return success, string(body), nil
	default:
		return failure, fmt.Sprintf("HTTP probe failed with statuscode: %d", code), nil
	}
}

// request makes the request of a probe.
func (a *attempts) request(ctx context.Context, q *ask, h *v1.HTTPGetAction) (*http.Request, error) {
	port, err := portOf(h.Port, q.container)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(h.Path)
	if err != nil {
		u = &url.URL{Path: h.Path} // a path that is no URL is meant as it stands
	}
	// The path is only a path, whatever it looks like: it names neither scheme nor host.
	u = &url.URL{
		Scheme:   strings.ToLower(string(h.Scheme)),
		Host:     hostPort(h.Host, q.address, port),
		Path:     u.Path,
		RawPath:  u.RawPath,
		RawQuery: u.RawQuery,
	}
	if u.Scheme == "" {
		u.Scheme = "http"
	}
	if !strings.HasPrefix(u.Path, "/") {
		u.Path, u.RawPath = "/"+u.Path, ""
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	for _, header := range h.HTTPHeaders {
		req.Header.Add(header.Name, header.Value)
	}
	if _, set := req.Header["User-Agent"]; !set {
		req.Header.Set("User-Agent", a.userAgent) // one that is set to nothing is not sent
	}
	if accept, set := req.Header["Accept"]; !set {
		req.Header.Set("Accept", "*/*")
	} else if accept[0] == "" {
		req.Header.Del("Accept")
	}
	if host := req.Header.Get("Host"); host != "" {
		req.Host = host
	}
	return req, nil
}
