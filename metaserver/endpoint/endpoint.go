// Package endpoint serves the Kubernetes API to pods and programs on the device, over HTTPS. It decides who may connect
// and how much a client may ask for; the answers come from the cluster (package forward).
//
// It promises: only this machine and its pods can connect, whatever the network's routes are; the bytes, requests and
// connections of a client are limited before anything is kept for them, so that no client uses up those of others; and
// a request without credentials goes nowhere. It authenticates nobody: kube-apiserver does that.
package endpoint

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/metaserver/apierror"
	"github.com/edgecore-io/edgecore/metaserver/apirequest"
	"github.com/edgecore-io/edgecore/metaserver/forward"
	"github.com/edgecore-io/edgecore/metaserver/identity"
	"github.com/edgecore-io/edgecore/pkg/retry"
	"github.com/edgecore-io/edgecore/pkg/shares"
)

const (
	// maxConns and maxSourceConns limit open connections, in all and of a source.
	maxConns       = 256
	maxSourceConns = 64
	// headerTime is how long a client may take for its handshake, and for the header of a request.
	headerTime = 10 * time.Second
	// writeTime is how long a client may take nothing of a connection that has something for it.
	writeTime = time.Minute
	maxHeader = 32 << 10
	maxBody   = 3 << 20
	// idleTime is how long a connection may be without a request. client-go closes its own after 90 s.
	idleTime = 3 * time.Minute
	// firstRetry and lastRetry bound how often an address is tried that cannot be listened on.
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// http2 are the limits of a connection of HTTP/2: more watches and requests than an account may have, and small buffers
// for what clients send.
func http2() *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxConcurrentStreams: 128,
		// Without it, a client that does not read its connection keeps the requests on it for ever: what ends them
		// would be written to the same connection.
		WriteByteTimeout:              writeTime,
		MaxReadFrameSize:              16 << 10,
		MaxReceiveBufferPerConnection: 128 << 10,
		MaxReceiveBufferPerStream:     64 << 10,
		SendPingTimeout:               time.Minute,
		PingTimeout:                   30 * time.Second,
	}
}

// Pods are the pods of the device. Their methods are called for each connection and each request.
type Pods interface {
	// HasAddress reports whether a pod has an address.
	HasAddress(addr netip.Addr) bool
	// Has reports whether a pod is on the device.
	Has(uid types.UID) bool
}

// Tokens knows the tokens of the device's pods; see package identity.
type Tokens interface {
	Of(token string) (identity.Identity, bool)
}

// Forwarder answers requests from the cluster; see package forward.
type Forwarder interface {
	Serve(w http.ResponseWriter, r *http.Request, req *forward.Request)
}

// Options make an Endpoint. All are required.
type Options struct {
	// Listen are the addresses with their ports. They need not be on the machine yet.
	Listen []netip.AddrPort
	// Certificate is tls.Config.GetCertificate.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Tokens      Tokens
	Pods        Pods
	Forward     Forwarder
	// Listening is called with nil when an address is served, and with an error when it cannot be. It may be called
	// from several goroutines.
	Listening func(address string, err error)
}

// Endpoint serves the API. Make it with New. It is also a prometheus.Collector.
type Endpoint struct {
	opts    Options
	limits  *limits
	sources *sources
	metrics *metrics
	conns   *shares.Conns

	// handlers are the requests under way; closed: no more begin.
	mu       sync.Mutex
	closed   bool
	handlers sync.WaitGroup
}

// New makes an endpoint. It listens when it runs.
func New(opts Options) *Endpoint {
	e := &Endpoint{opts: opts, limits: newLimits(), metrics: newMetrics()}
	e.sources = newSources(opts.Pods, func() { e.metrics.refuse(whySource) })
	e.conns = shares.New(shares.Options{
		Size:    shares.Fixed(maxConns),
		Share:   maxSourceConns,
		Hello:   headerTime,
		Refused: func() { e.metrics.refuse(whyConns) },
	})
	return e
}

// Run serves until ctx ends. It returns when all requests have ended. It may then be called again.
func (e *Endpoint) Run(ctx context.Context) {
	e.setClosed(false)
	var wg sync.WaitGroup
	for _, address := range e.opts.Listen {
		wg.Go(func() {
			retry.Until(ctx, firstRetry, lastRetry, func(ctx context.Context) error {
				return e.serve(ctx, address.String())
			}, func(err error, again time.Duration) {
				klog.V(2).InfoS("API endpoint is not served", "address", address, "err", err, "again", again)
				e.opts.Listening(address.String(), err)
			})
		})
	}
	wg.Wait()
	e.setClosed(true)
	e.handlers.Wait()
}

func (e *Endpoint) setClosed(closed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = closed
}

// serve serves an address until ctx ends, or something fails.
func (e *Endpoint) serve(ctx context.Context, address string) error {
	config := net.ListenConfig{Control: freebind}
	l, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	e.opts.Listening(l.Addr().String(), nil)
	srv := &http.Server{
		Handler:           e,
		ReadHeaderTimeout: headerTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    maxHeader,
		HTTP2:             http2(),
		ErrorLog:          log.New(io.Discard, "", 0), // clients that go away, and handshakes that fail
		BaseContext:       func(net.Listener) context.Context { return ctx },
		TLSConfig: &tls.Config{
			MinVersion:     tls.VersionTLS12,
			NextProtos:     []string{"h2", "http/1.1"},
			GetCertificate: e.opts.Certificate,
		},
	}
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	err = srv.ServeTLS(e.conns.Listen(e.sources.listen(l)), "", "")
	_ = srv.Close() // the connections, if the listener has failed
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// freebind lets a socket listen on an address that is not on the machine yet.
func freebind(network, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		if network == "tcp6" {
			failed = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_FREEBIND, 1)
			return
		}
		failed = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1)
	})
	if err != nil {
		return err
	}
	return failed
}

// begin notes that a request begins, and reports whether it may.
func (e *Endpoint) begin() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.handlers.Add(1)
	}
	return !e.closed
}

// ServeHTTP implements http.Handler.
func (e *Endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !e.begin() {
		panic(http.ErrAbortHandler)
	}
	defer e.handlers.Done()
	info := apirequest.Of(r)
	rec := &recorder{ResponseWriter: w}
	begun, from := time.Now(), fromDevice
	defer func() { e.metrics.observe(&info, rec.status(info.IsUpgrade), from, time.Since(begun)) }()
	caller := e.caller(r, &info)
	release, refusal := e.limits.enter(caller, info.IsLong(), begun)
	switch {
	case refusal != nil:
		e.metrics.refuse(refusal.why)
		if caller.kind != pod {
			rec.Header().Set("Connection", "close") // so that the rate of connections limits what it costs
		}
		apierror.Write(rec, r, refusal.status)
		return
	case caller.kind == health:
		defer release()
		healthy(rec, r)
		return
	case caller.kind == stranger:
		defer release()
		e.metrics.refuse(whyNoToken)
		apierror.Write(rec, r, apierror.Unauthorized())
		return
	}
	defer release()
	if r.ContentLength > maxBody {
		e.metrics.refuse(whyBody)
		apierror.Write(rec, r, apierror.TooLarge(maxBody))
		return
	}
	if r.ContentLength != 0 && !info.IsUpgrade {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	}
	from = fromCluster
	e.opts.Forward.Serve(rec, r, &forward.Request{Info: info, Account: caller.account})
}

// healthy answers a probe of the endpoint itself, as kube-apiserver does: it serves, also without a link.
func healthy(w http.ResponseWriter, r *http.Request) {
	apierror.Limit(w, r)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if _, err := io.WriteString(w, "ok"); err != nil {
		klog.V(4).InfoS("Probe of the API endpoint not answered", "err", err)
	}
}

// recorder notes the code of an answer.
type recorder struct {
	http.ResponseWriter
	code int
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(code int) {
	if r.code == 0 && code >= http.StatusOK {
		r.code = code
	}
	r.ResponseWriter.WriteHeader(code)
}

// status returns the code of the answer. The code of an upgrade is written to the connection itself.
func (r *recorder) status(upgrade bool) int {
	switch {
	case r.code != 0:
		return r.code
	case upgrade:
		return http.StatusSwitchingProtocols
	}
	return http.StatusOK
}
