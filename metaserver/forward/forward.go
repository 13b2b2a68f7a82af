// Package forward sends requests to cloudcore, which sends them to kube-apiserver with the credentials that they have.
// Each travels over a stream of the device's one connection to cloudcore, as HTTP/1.1. A stream is used for one request
// at a time, and again for the next.
//
// It promises: without a link every request is answered at once; a request that changes something is sent at most once,
// and the client is told if it cannot know whether it was carried out; no account can use all streams; and events of a
// watch are passed on as they come.
package forward

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/metaserver/apierror"
	"github.com/edgecore-io/edgecore/metaserver/apirequest"
	"github.com/edgecore-io/edgecore/pkg/acceptgzip"
	"github.com/edgecore-io/edgecore/pkg/ratelimit"
	"github.com/edgecore-io/edgecore/pkg/shares"
)

const (
	// maxStreams is how many requests are under way at once: cloudcore takes 64 streams of a node, of which idleStreams
	// may wait for the next request.
	maxStreams = 56
	// accountShort and accountLong are an account's share of the streams, for requests with an end and without. All
	// accounts together have longStreams of the latter, so that some remain for short requests.
	accountShort = 20
	longStreams  = 48
	accountLong  = 32
	// upgrades and accountUpgrades are how many requests change their protocol, in all and of an account. cloudcore
	// takes as many of a node.
	upgrades, accountUpgrades = 8, 4
	// streamWait is how long a request waits for a stream of others.
	streamWait = 10 * time.Second
	// idleStreams and idleFor bound the streams that wait for the next request.
	idleStreams = 8
	idleFor     = 30 * time.Second
	// answerWait is how long kube-apiserver may take until it begins to answer. It gives up after 60 s itself.
	answerWait = 2 * time.Minute
	// maxAnswerHeader limits the header of an answer.
	maxAnswerHeader = 64 << 10
	// uploadRate and uploadBurst are bytes of an account's requests, for each second and at once.
	uploadRate  = 2 << 20
	uploadBurst = 256 << 10
	// tooManyRetry is when a client may try again that found no stream.
	tooManyRetry = time.Second
)

// host is the name that kube-apiserver has for pods.
const host = "kubernetes.default.svc"

// Streams is the way to cloudcore.
type Streams interface {
	// Open opens a stream on which cloudcore expects requests of HTTP/1.1.
	Open(ctx context.Context) (net.Conn, error)
	// Connected reports whether there is a link, and since when there is one or none. A zero time is since the start.
	Connected() (is bool, since time.Time)
}

// Request is a request, and what is known of it.
type Request struct {
	Info apirequest.Info
	// Account is whose share the request takes.
	Account string
}

// Forwarder forwards requests. Its methods may be called from any goroutine. Make it with New.
type Forwarder struct {
	streams    Streams
	transports transports
	proxy      *httputil.ReverseProxy
	slots      chan struct{}
	short      *shares.Budget[string]
	long       *shares.Budget[string]
	upgrades   *shares.Budget[string]
	uploads    *ratelimit.Limiter[string]
}

// New makes a Forwarder. Close ends its idle streams.
func New(streams Streams) *Forwarder {
	f := &Forwarder{
		streams:  streams,
		slots:    make(chan struct{}, maxStreams),
		short:    shares.NewBudget[string](maxStreams, accountShort),
		long:     shares.NewBudget[string](longStreams, accountLong),
		upgrades: shares.NewBudget[string](upgrades, accountUpgrades),
		uploads:  ratelimit.New[string](uploadRate, uploadBurst),
	}
	f.transports = newTransports(streams)
	f.proxy = &httputil.ReverseProxy{
		Rewrite:       rewrite,
		Transport:     f.transports,
		FlushInterval: -1, // after each part that arrives
		ErrorHandler:  f.fail,
		ErrorLog:      log.New(io.Discard, "", 0), // fail logs them
	}
	return f
}

// Close closes the streams that wait for a request. Requests under way end with their contexts.
func (f *Forwarder) Close() { f.transports.again.CloseIdleConnections() }

// transports send requests over streams.
type transports struct {
	// again uses a stream again for the next request. If the stream ends before there is an answer, it repeats a
	// request that changes nothing, as far as its method says. once opens a stream for each request, repeats nothing,
	// and waits for an answer as long as it takes.
	again, once *http.Transport
}

func newTransports(streams Streams) transports {
	made := func() *http.Transport {
		return &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return streams.Open(ctx)
			},
			MaxIdleConns:           idleStreams,
			MaxIdleConnsPerHost:    idleStreams,
			IdleConnTimeout:        idleFor,
			MaxResponseHeaderBytes: maxAnswerHeader,
		}
	}
	t := transports{again: made(), once: made()}
	t.again.ResponseHeaderTimeout = answerWait
	t.once.DisableKeepAlives = true
	return t
}

// RoundTrip implements http.RoundTripper. A log that is followed has no answer before its first line, an exec may be a
// GET, and net/http takes a request with a key for one that can be repeated.
func (t transports) RoundTrip(r *http.Request) (*http.Response, error) {
	fl, ok := r.Context().Value(flightKey{}).(*flight)
	if ok && fl.info.IsLong() || r.Header["Idempotency-Key"] != nil || r.Header["X-Idempotency-Key"] != nil {
		return t.once.RoundTrip(r)
	}
	return t.again.RoundTrip(r)
}

// Streams returns how many streams are in use.
func (f *Forwarder) Streams() int { return len(f.slots) }

// flight is a request under way.
type flight struct {
	info *apirequest.Info
	// sent is set once the first byte of the request may have left.
	sent atomic.Bool
}

type flightKey struct{}

// Serve forwards a request, and answers it.
func (f *Forwarder) Serve(w http.ResponseWriter, r *http.Request, req *Request) {
	if is, since := f.streams.Connected(); !is {
		apierror.Write(w, r, apierror.Offline(&req.Info, since))
		return
	}
	release, refused := f.take(r.Context(), req)
	if refused != nil {
		apierror.Write(w, r, refused)
		return
	}
	defer release()
	fl := &flight{info: &req.Info}
	ctx := context.WithValue(r.Context(), flightKey{}, fl)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteHeaderField: func(string, []string) { fl.sent.Store(true) },
	})
	limited := &client{
		ResponseWriter: w,
		control:        http.NewResponseController(w),
		ctx:            ctx,
		uploads:        f.uploads,
		account:        req.Account,
	}
	r = r.WithContext(ctx)
	if r.ContentLength != 0 {
		r.Body = limited.body(r.Body)
	}
	f.proxy.ServeHTTP(limited, r)
}

// take takes a stream for a request, and a part of its account's share. It returns what gives them back, or why there
// is none.
func (f *Forwarder) take(ctx context.Context, req *Request) (release func(), refused *metav1.Status) {
	share := f.short
	if req.Info.IsLong() {
		share = f.long
	}
	tooMany := apierror.TooManyRequests("too many requests of service account "+req.Account+" are under way on this "+
		"device", tooManyRetry)
	if !share.Take(req.Account, 1) {
		return nil, tooMany
	}
	giveBack := func() { share.Return(req.Account, 1) }
	if req.Info.IsUpgrade {
		if !f.upgrades.Take(req.Account, 1) {
			giveBack()
			return nil, tooMany
		}
		giveBack = func() {
			f.upgrades.Return(req.Account, 1)
			share.Return(req.Account, 1)
		}
	}
	timer := time.NewTimer(streamWait)
	defer timer.Stop()
	select {
	case f.slots <- struct{}{}:
		return func() {
			<-f.slots
			giveBack()
		}, nil
	case <-timer.C:
	case <-ctx.Done():
	}
	giveBack()
	return nil, apierror.TooManyRequests("too many requests are under way on this device", tooManyRetry)
}

// rewrite makes the request to cloudcore. What identifies the caller to kube-apiserver stays as it is.
func rewrite(r *httputil.ProxyRequest) {
	out := r.Out
	out.URL.Scheme, out.URL.Host, out.Host = "http", host, host
	out.URL.RawQuery = r.In.URL.RawQuery // ReverseProxy drops what it cannot parse
	out.Header.Del("Expect")             // the body is here already, or about to be
	// Also if the client names it as a header of the connection: it would be anonymous then.
	out.Header["Authorization"] = r.In.Header["Authorization"]
	if !acceptgzip.By(out.Header) {
		out.Header.Del("Accept-Encoding") // the transport asks for gzip, and decompresses
	}
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header["User-Agent"] = nil // not that of Go
	}
}

// fail answers a request that was not answered by kube-apiserver.
func (f *Forwarder) fail(w http.ResponseWriter, r *http.Request, err error) {
	fl, ok := r.Context().Value(flightKey{}).(*flight)
	if !ok || r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client is gone, or the agent stops
	}
	is, since := f.streams.Connected()
	klog.V(2).InfoS("Request to the API server failed", "verb", fl.info.Verb, "object", fl.info.String(), "sent",
		fl.sent.Load(), "err", err)
	if c, ok := w.(*client); ok {
		w = c.ResponseWriter // whose time to write is not extended
	}
	apierror.Write(w, r, answer(fl.info, err, fl.sent.Load(), is, since))
}

// answer decides what a client is told about a request that failed.
func answer(info *apirequest.Info, err error, sent, connected bool, since time.Time) *metav1.Status {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return apierror.TooLarge(tooLarge.Limit)
	}
	changes := !info.IsRead() && !info.IsUpgrade
	switch {
	case sent && changes:
		return apierror.Lost(info)
	case !connected:
		return apierror.Offline(info, since)
	case sent:
		return apierror.Failed("the connection to the cluster was lost before it answered")
	}
	return apierror.Failed("the request could not be sent to the cluster: " + clip(err.Error()))
}

// maxShown limits how much of an error clients see.
const maxShown = 300

func clip(s string) string {
	if len(s) <= maxShown {
		return s
	}
	return strings.ToValidUTF8(s[:maxShown], "") + "..."
}
