// Package apiproxy sends the requests of clients on nodes to kube-apiserver. Nodes bring the requests over streams of
// their own (cloudhub.API), each of which carries HTTP/1.1.
//
// It promises:
//
//   - kube-apiserver sees the credentials of the client alone. cloudcore's own are not even known here: of the
//     configuration, the address and what is needed to trust the server are used. A request without a bearer token is
//     answered 401 here and not forwarded. A node may send 200 requests a second.
//   - Headers that speak for others do not pass: those of a proxy that authenticates (X-Remote-*), those that claim
//     where a request comes from (X-Forwarded-*, X-Real-Ip), and those of a connection. Impersonate-* pass, and
//     kube-apiserver judges them by the client's rights. The node's name is added to the User-Agent, for audit logs.
//   - Answers are streamed, without a limit, and each part of them is sent at once. JSON that kube-apiserver did not
//     compress is compressed, except of watches.
//   - An answer that does not come is 503 with Retry-After if the request has done nothing, and 504 without it if it
//     may have: clients repeat a 503 by themselves.
//   - A node can make this process keep no more than about 48 MiB, whatever it sends and does not read: 64 streams, of
//     which each takes at most 256 KiB of an answer of kube-apiserver, 32 KiB of headers and about 50 KiB of buffers
//     (22 MiB), 8 compressors of 0.8 MiB, and what its connection takes (tunnel.APIAcceptor: 17 MiB). A request has
//     at most 3 MiB, which are not kept. A node has at most 8 upgraded connections, and all nodes 512.
package apiproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/ratelimit"
	"github.com/edgecore-io/edgecore/pkg/shares"
)

const (
	// headerBytes and headerTimeout limit the header of a request, bodyBytes its body, as kube-apiserver does.
	headerBytes   = 32 << 10
	headerTimeout = 10 * time.Second
	bodyBytes     = 3 << 20
	// idleTimeout is how long a stream may have no request. Nodes close theirs sooner.
	idleTimeout = 5 * time.Minute
	// answerWindow is how many bytes of an answer kube-apiserver may send before they are read.
	answerWindow = 256 << 10
	// upgrades and nodeUpgrades are how many connections may be upgraded, or wait for that, of all nodes and of one.
	// Each takes a connection to kube-apiserver, and so an open file.
	upgrades     = 512
	nodeUpgrades = 8
	// nodeRate and nodeBurst are requests of a node, in a second and at once. kube-apiserver does not limit those whose
	// token it does not know.
	nodeRate, nodeBurst = 200, 400
	// endTime is how long a node may take to end its direction of an upgraded connection after the other one has ended.
	endTime = time.Minute
)

// Options configures a Proxy. Config is required.
type Options struct {
	// Config says where kube-apiserver is, and how to trust it. Its credentials are not used.
	Config *rest.Config
	// Registry registers the metrics; nil: no metrics.
	Registry prometheus.Registerer
}

// Proxy forwards requests while Run runs. It implements cloudhub.API.
type Proxy struct {
	base       *url.URL
	transports transports
	forward    *httputil.ReverseProxy
	streams    *streamListener
	upgrades   *shares.Budget[string]
	rates      *ratelimit.Limiter[string]
	gzips      *compressors
	answered   *prometheus.CounterVec
	// handlers are the running requests. closing is guarded by mu.
	mu       sync.Mutex
	closing  bool
	handlers sync.WaitGroup
}

// New makes a proxy. It sends no requests.
func New(o Options) (*Proxy, error) {
	anonymous := rest.AnonymousClientConfig(o.Config)
	base, _, err := rest.DefaultServerUrlFor(anonymous)
	if err != nil {
		return nil, fmt.Errorf("address of kube-apiserver %q: %w", anonymous.Host, err)
	}
	config, err := rest.TLSConfigFor(anonymous)
	if err != nil {
		return nil, fmt.Errorf("TLS to kube-apiserver %s: %w", base.Host, err)
	}
	p := &Proxy{
		base:       base,
		transports: newTransports(anonymous, config),
		streams:    newStreamListener(),
		upgrades:   shares.NewBudget[string](upgrades, nodeUpgrades),
		rates:      ratelimit.New[string](nodeRate, nodeBurst),
		gzips:      newCompressors(),
		answered: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cloudcore_api_forwarded_total",
			Help: "Requests of clients on nodes to the Kubernetes API, by code of the answer",
		}, []string{"code"}),
	}
	// With a code from the start, so that there is something to compare a later count with.
	p.answered.WithLabelValues(strconv.Itoa(http.StatusOK))
	if o.Registry != nil {
		if err := o.Registry.Register(p.answered); err != nil {
			return nil, fmt.Errorf("register apiproxy's metrics: %w", err)
		}
	}
	p.forward = &httputil.ReverseProxy{
		Rewrite:       p.rewrite,
		Transport:     p.transports,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0), // what fails is the node's or the client's to notice
		ErrorHandler:  answerFailure,
	}
	return p, nil
}

// ServeStream implements cloudhub.API. It waits only for other streams to be accepted.
func (p *Proxy) ServeStream(node string, stream net.Conn) {
	p.streams.addStream(nodeConn{stream, node})
}

// Run forwards requests until ctx ends, and ends those that are under way.
func (p *Proxy) Run(ctx context.Context) error {
	server := &http.Server{
		Handler:           http.HandlerFunc(p.serve),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    headerBytes,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, nodeKey{}, c.(nodeConn).node)
		},
		ErrorLog: log.New(io.Discard, "", 0), // any node can cause them
	}
	defer p.transports.closeIdle()
	defer p.handlers.Wait()
	defer p.refuseRequests()
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	err := server.Serve(p.streams)
	if ctx.Err() != nil && errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve nodes' requests to the Kubernetes API: %w", err)
}

// refuseRequests lets no request begin any more.
func (p *Proxy) refuseRequests() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closing = true
}

// beginRequest reports whether a request may begin; the caller calls handlers.Done.
func (p *Proxy) beginRequest() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closing {
		p.handlers.Add(1)
	}
	return !p.closing
}

// nodeKey is the key of the node's name in the context of a request.
type nodeKey struct{}

func nodeOf(ctx context.Context) string {
	node, _ := ctx.Value(nodeKey{}).(string)
	return node
}

// serve answers a request.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	if !p.beginRequest() {
		panic(http.ErrAbortHandler)
	}
	defer p.handlers.Done()
	node := nodeOf(r.Context())
	a := &answer{ResponseWriter: w, gzips: p.gzips, node: node, compress: mayCompress(r)}
	defer func() {
		if a.code > 0 {
			p.answered.WithLabelValues(strconv.Itoa(a.code)).Inc()
		}
	}()
	defer a.releaseWriter()
	if now := time.Now(); !p.rates.Of(node, now).AllowN(now, 1) {
		writeStatus(a, tooFast(node), 1)
		return
	}
	if refused := check(r); refused != nil {
		writeStatus(a, refused, 0)
		return
	}
	if isUpgrade(r) {
		if !p.upgrades.Take(node, 1) {
			writeStatus(a, tooManyUpgrades(node), 1)
			return
		}
		defer p.upgrades.Return(node, 1)
	}
	// Without a length, the limit is noticed while the body is sent on, whose error answerFailure gets.
	r.Body = http.MaxBytesReader(w, r.Body, bodyBytes)
	traced, sent := traceSent(r.Context())
	p.forward.ServeHTTP(a, r.WithContext(context.WithValue(traced, sentKey{}, sent)))
	if isUpgrade(r) && a.code == 0 { // ReverseProxy has taken the connection over, and written the answer itself
		a.code = http.StatusSwitchingProtocols
		return
	}
	if err := a.finish(); err != nil && r.Context().Err() == nil {
		klog.V(3).InfoS("Answer of the Kubernetes API not sent to its node", "node", node, "err", err)
		panic(http.ErrAbortHandler) // so that the client does not take it for complete
	}
}

// rewrite makes the request to kube-apiserver. ReverseProxy has removed the headers of the connection, also those that
// the client names as such.
func (p *Proxy) rewrite(r *httputil.ProxyRequest) {
	r.SetURL(p.base)
	r.Out.URL.RawQuery = r.In.URL.RawQuery // ReverseProxy drops what it cannot parse
	header := r.Out.Header
	for name := range header {
		if ofOthers(name) {
			delete(header, name)
		}
	}
	// A client that names Authorization as a header of the connection is not anonymous.
	header["Authorization"] = r.In.Header["Authorization"]
	header.Set("User-Agent", userAgent(r.In.Header.Get("User-Agent"), nodeOf(r.In.Context())))
}

// userAgent adds the node's name to a client's User-Agent. What is before the first slash stays as it is:
// kube-apiserver takes it for the name of the manager of the fields that the client writes. A client without a name
// gets none.
func userAgent(own, node string) string {
	switch {
	case own == "":
		return ""
	case !strings.Contains(own, "/"):
		own += "/unknown"
	}
	return own + " edgecore/" + node
}

// ofOthers reports whether a header speaks for someone else than the client.
func ofOthers(name string) bool {
	name = strings.ToLower(name)
	return name == "forwarded" || name == "x-real-ip" || strings.HasPrefix(name, "x-forwarded") ||
		strings.HasPrefix(name, "x-remote-")
}

// isUpgrade reports whether a request asks for another protocol on its connection.
func isUpgrade(r *http.Request) bool { return r.Header.Get("Upgrade") != "" }

// isWatch reports whether a request asks for a watch, as kube-apiserver decides it.
func isWatch(r *http.Request) bool {
	values := r.URL.Query()["watch"]
	return len(values) > 0 && values[0] != "0" && !strings.EqualFold(values[0], "false") ||
		strings.Contains(r.URL.Path, "/watch/")
}

// transports connect to kube-apiserver without credentials.
type transports struct {
	// all shares connections of HTTP/2. upgrade uses HTTP/1.1, which alone can change the protocol, with a connection
	// for each request, which is never sent twice: an exec may be a GET.
	all, upgrade *http.Transport
}

func newTransports(rc *rest.Config, config *tls.Config) transports {
	dial := rc.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	proxy := rc.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	made := func(http2 bool) *http.Transport {
		t := &http.Transport{
			Proxy:               proxy,
			DialContext:         dial,
			TLSClientConfig:     config.Clone(),
			TLSHandshakeTimeout: 10 * time.Second,
			DisableCompression:  true, // whether to compress is the client's choice
			MaxIdleConnsPerHost: 16,
			IdleConnTimeout:     90 * time.Second,
			Protocols:           &http.Protocols{},
			HTTP2: &http.HTTP2Config{
				MaxReceiveBufferPerStream: answerWindow,
				SendPingTimeout:           30 * time.Second,
				PingTimeout:               15 * time.Second,
			},
		}
		t.Protocols.SetHTTP1(true)
		t.Protocols.SetHTTP2(http2)
		if t.TLSClientConfig != nil {
			t.TLSClientConfig.NextProtos = nil // the transport's to choose
		}
		return t
	}
	upgrade := made(false)
	upgrade.DisableKeepAlives = true
	return transports{made(true), upgrade}
}

// RoundTrip implements http.RoundTripper.
func (t transports) RoundTrip(r *http.Request) (*http.Response, error) {
	// net/http takes a request with a key for one that can be repeated.
	if isUpgrade(r) || r.Header["Idempotency-Key"] != nil || r.Header["X-Idempotency-Key"] != nil {
		return t.upgrade.RoundTrip(r)
	}
	return t.all.RoundTrip(r)
}

func (t transports) closeIdle() {
	t.all.CloseIdleConnections()
	t.upgrade.CloseIdleConnections()
}

// nodeConn is a stream of a node.
type nodeConn struct {
	net.Conn
	node string
}

// CloseWrite ends the sending direction. The node has endTime to end the other one.
func (c nodeConn) CloseWrite() error {
	if err := c.SetReadDeadline(time.Now().Add(endTime)); err != nil {
		return err
	}
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// streamListener is a listener that accepts the streams that are added to it.
type streamListener struct {
	added  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newStreamListener() *streamListener {
	return &streamListener{added: make(chan net.Conn), closed: make(chan struct{})}
}

// addStream hands a stream over, or closes it if the listener is closed.
func (l *streamListener) addStream(c net.Conn) {
	select {
	case l.added <- c:
	case <-l.closed:
		_ = c.Close()
	}
}

// Accept implements net.Listener.
func (l *streamListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.added:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *streamListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *streamListener) Addr() net.Addr { return &net.UnixAddr{Name: "streams of nodes", Net: "unix"} }
