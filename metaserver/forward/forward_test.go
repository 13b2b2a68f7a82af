package forward

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/metaserver/apirequest"
	"github.com/edgecore-io/edgecore/pkg/acceptgzip"
	"github.com/edgecore-io/edgecore/pkg/ratelimit"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// cloud is cloudcore's end: a server of HTTP/1.1 on TCP connections, which stand for streams.
type cloud struct {
	address string
	opened  atomic.Int32
	offline atomic.Bool
	since   time.Time
	failure error
}

func (c *cloud) Open(ctx context.Context) (net.Conn, error) {
	if c.failure != nil {
		return nil, c.failure
	}
	c.opened.Add(1)
	return (&net.Dialer{}).DialContext(ctx, "tcp", c.address)
}

func (c *cloud) Connected() (bool, time.Time) { return !c.offline.Load(), c.since }

// env is a device with an endpoint, and a cloud.
type env struct {
	*cloud
	forwarder *Forwarder
	server    *httptest.Server
	client    *http.Client
}

// newEnv makes one. The account of a request is the value of its header Account. With http2, clients use that.
func newEnv(t *testing.T, http2 bool, api http.HandlerFunc) *env {
	t.Helper()
	upstream := httptest.NewServer(api)
	t.Cleanup(upstream.Close)
	e := &env{cloud: &cloud{address: upstream.Listener.Addr().String()}}
	e.forwarder = New(e.cloud)
	t.Cleanup(e.forwarder.Close)
	e.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
		e.forwarder.Serve(w, r, &Request{Info: apirequest.Of(r), Account: r.Header.Get("Account")})
	}))
	e.server.EnableHTTP2 = http2
	e.server.StartTLS()
	t.Cleanup(e.server.Close)
	e.client = e.server.Client()
	return e
}

func (e *env) do(t *testing.T, method, path string, body io.Reader, headers ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(wait.Context(t), method, e.server.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := e.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func read(t *testing.T, resp *http.Response) string {
	t.Helper()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func statusOf(t *testing.T, resp *http.Response) metav1.Status {
	t.Helper()
	var s metav1.Status
	if err := json.Unmarshal([]byte(read(t, resp)), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestPassesRequestsAsTheyAre: kube-apiserver gets the caller's credentials, path, query and body, and nothing of the
// device's.
func TestPassesRequestsAsTheyAre(t *testing.T) {
	type seen struct {
		header            http.Header
		uri, method, body string
	}
	got := make(chan seen, 1)
	e := newEnv(t, false, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got <- seen{r.Header.Clone(), r.RequestURI, r.Method, string(body)}
		w.Header().Set("Audit-Id", "a1")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "made")
	})
	const uri = "/api/v1/namespaces/shop/pods?fieldSelector=a%3Db;c&x=%2F"
	resp := e.do(t, "POST", uri, strings.NewReader("\x00proto"), "Authorization", "Bearer pod", "Impersonate-User",
		"joe", "User-Agent", "kubectl", "X-Forwarded-For", "1.2.3.4", "Content-Type",
		"application/vnd.kubernetes.protobuf")
	if resp.StatusCode != http.StatusCreated || read(t, resp) != "made" || resp.Header.Get("Audit-Id") != "a1" {
		t.Errorf("answer %d %v, want 201 made with its header", resp.StatusCode, resp.Header)
	}
	s := <-got
	if s.uri != uri || s.method != "POST" || s.body != "\x00proto" {
		t.Errorf("request %s %s with body %q, want it as it was", s.method, s.uri, s.body)
	}
	for name, want := range map[string]string{
		"Authorization":    "Bearer pod",
		"Impersonate-User": "joe",
		"User-Agent":       "kubectl",
		"Content-Type":     "application/vnd.kubernetes.protobuf",
		"X-Forwarded-For":  "",
	} {
		if got := s.header.Get(name); got != want {
			t.Errorf("header %s = %q, want %q", name, got, want)
		}
	}
}

// TestStreamsAreReused: requests one after the other need one stream.
func TestStreamsAreReused(t *testing.T) {
	e := newEnv(t, false, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	for range 5 {
		if text := read(t, e.do(t, "GET", "/version", nil)); text != "ok" {
			t.Fatalf("answer %q, want ok", text)
		}
	}
	if n := e.opened.Load(); n != 1 {
		t.Errorf("%d streams were opened for 5 requests, want 1", n)
	}
}

// TestSentOnce: requests without an end, upgrades, and those that net/http would repeat have a stream of their own, on
// which nothing is sent twice.
func TestSentOnce(t *testing.T) {
	e := newEnv(t, false, func(http.ResponseWriter, *http.Request) {})
	requests := []func(){
		func() { read(t, e.do(t, http.MethodGet, "/api/v1/pods?watch=true", nil)) },
		func() { read(t, e.do(t, http.MethodGet, "/api/v1/namespaces/a/pods/b/log?follow=true", nil)) },
		func() {
			read(t, e.do(t, http.MethodDelete, "/api/v1/namespaces/a/pods/b", nil, "Idempotency-Key", "1"))
		},
		func() {
			read(t, e.do(t, http.MethodGet, "/api/v1/namespaces/a/pods/b/exec", nil,
				"Connection", "Upgrade", "Upgrade", "websocket"))
		},
	}
	for i, request := range requests {
		for n := range 2 {
			request()
			if got, want := e.opened.Load(), int32(2*i+n+1); int32(got) != want {
				t.Fatalf("request %d: %d streams were opened, want %d", i, got, want)
			}
		}
	}
}

// TestWatchIsPassedOnAtOnce: the header comes before the first event, and each event when it happens. The end of the
// client ends the request to the API server.
func TestWatchIsPassedOnAtOnce(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		events, ended := make(chan string), make(chan struct{})
		e := newEnv(t, http2, func(w http.ResponseWriter, r *http.Request) {
			defer close(ended)
			control := http.NewResponseController(w)
			if err := control.Flush(); err != nil {
				t.Error(err)
			}
			for {
				select {
				case event := <-events:
					_, _ = io.WriteString(w, event+"\n")
					_ = control.Flush() // it fails once the client is gone
				case <-r.Context().Done():
					return
				}
			}
		})
		resp := e.do(t, "GET", "/api/v1/pods?watch=1", nil) // it returns with the header
		if http2 != (resp.ProtoMajor == 2) {
			t.Fatalf("protocol %s, want HTTP/2: %v", resp.Proto, http2)
		}
		lines := bufio.NewScanner(resp.Body)
		for _, event := range []string{"one", "two"} {
			events <- event
			if !lines.Scan() || lines.Text() != event {
				t.Fatalf("event %q (%v), want %q", lines.Text(), lines.Err(), event)
			}
		}
		_ = resp.Body.Close()
		wait.Closed(t, "the end of the request in the cloud", ended)
	}
}

// TestGzip: a compressed answer is passed through to a client that takes it, and decompressed for one that does not.
func TestGzip(t *testing.T) {
	e := newEnv(t, false, func(w http.ResponseWriter, r *http.Request) {
		if !acceptgzip.By(r.Header) {
			t.Errorf("Accept-Encoding = %q, want the device to ask for gzip", r.Header["Accept-Encoding"])
		}
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, "plain")
		_ = z.Close()
	})
	for accepts, compressed := range map[string]bool{"gzip": true, "br, GZIP;q=0.5": true, "identity": false,
		"gzip;q=0": false} {
		resp := e.do(t, "GET", "/api/v1/pods", nil, "Accept-Encoding", accepts)
		text := read(t, resp)
		if got := resp.Header.Get("Content-Encoding") == "gzip"; got != compressed || (text == "plain") == compressed {
			t.Errorf("Accept-Encoding %q: compressed %v, body %q; want %v", accepts, got, text, compressed)
		}
	}
}

// TestOffline: without a link each request is answered at once, and nothing is sent.
func TestOffline(t *testing.T) {
	e := newEnv(t, false, func(http.ResponseWriter, *http.Request) { t.Error("a request was sent, want none") })
	e.since = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	e.offline.Store(true)
	resp := e.do(t, "PUT", "/api/v1/namespaces/shop/configmaps/a", strings.NewReader("x"))
	s := statusOf(t, resp)
	want := "this device has no connection to its cluster since 2026-01-02T03:04:05Z; configmaps shop/a cannot be " +
		"changed now"
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "5" || s.Message != want {
		t.Errorf("answer %d, Retry-After %q, %q; want 503, 5, %q", resp.StatusCode, resp.Header.Get("Retry-After"),
			s.Message, want)
	}
}

// TestLostAnswer: whether a change was carried out is unknown, so the client must not repeat it by itself. It is sent
// once.
func TestLostAnswer(t *testing.T) {
	var asked atomic.Int32
	e := newEnv(t, false, func(_ http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		panic(http.ErrAbortHandler)
	})
	resp := e.do(t, "PATCH", "/api/v1/namespaces/shop/configmaps/a", strings.NewReader("x"))
	if after := resp.Header.Get("Retry-After"); resp.StatusCode != 504 || after != "" {
		t.Errorf("change: %d, Retry-After %q; want 504 without", resp.StatusCode, after)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the change was sent %d times, want once", n)
	}
	resp = e.do(t, "GET", "/api/v1/namespaces/shop/configmaps/a", nil)
	if after := resp.Header.Get("Retry-After"); resp.StatusCode != 503 || after != "1" {
		t.Errorf("read: %d, Retry-After %q; want 503 and 1", resp.StatusCode, after)
	}
}

// TestCutAnswer: a client sees that an answer is not complete.
func TestCutAnswer(t *testing.T) {
	e := newEnv(t, false, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	resp := e.do(t, "GET", "/api/v1/pods", nil)
	if text, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("body %q without an error, want one", text)
	}
}

func TestStreamCannotBeOpened(t *testing.T) {
	e := newEnv(t, false, nil)
	e.failure = errors.New("cloudcore does not offer it")
	for _, method := range []string{"GET", "DELETE"} { // which was not sent, and can be repeated
		resp := e.do(t, method, "/api/v1/namespaces/shop/pods/a", nil)
		s := statusOf(t, resp)
		if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "1" ||
			!strings.Contains(s.Message, "cloudcore does not offer it") {
			t.Errorf("%s: %d %q, Retry-After %q; want 503 with the reason and 1", method, resp.StatusCode, s.Message,
				resp.Header.Get("Retry-After"))
		}
	}
}

func TestTooLargeBody(t *testing.T) {
	e := newEnv(t, false, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	resp := e.do(t, "POST", "/api/v1/namespaces/shop/configmaps", io.MultiReader(bytes.NewReader(make([]byte, 1<<20)),
		strings.NewReader("x")))
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("answer %d, want 413", resp.StatusCode)
	}
}

// TestUpgrade: exec and port-forward change the protocol. Both directions work, and each can end by itself.
func TestUpgrade(t *testing.T) {
	e := newEnv(t, false, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "SPDY/3.1" || r.Header.Get("Connection") != "Upgrade" {
			t.Errorf("header %v, want the upgrade", r.Header)
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
		_ = rw.Flush()
		text, err := io.ReadAll(rw) // until the client's half is closed
		if err != nil {
			t.Error(err)
		}
		_, _ = conn.Write(append([]byte("echo "), text...))
	})
	r, err := http.NewRequestWithContext(wait.Context(t), "POST", e.server.URL+"/api/v1/namespaces/shop/pods/a/exec",
		nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "SPDY/3.1")
	resp, err := e.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if resp.StatusCode != http.StatusSwitchingProtocols || !ok {
		t.Fatalf("answer %d, want 101", resp.StatusCode)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	half, ok := conn.(interface{ CloseWrite() error })
	if !ok {
		t.Fatal("an upgraded connection of a client cannot be half-closed, want it to")
	}
	if err := half.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(conn); err != nil || string(text) != "echo hello" {
		t.Errorf("answer %q, %v; want echo hello", text, err)
	}
}

// TestAccountsShareStreams: an account that has its share of watches gets 429, others are served, also all short
// requests.
func TestAccountsShareStreams(t *testing.T) {
	release := make(chan struct{})
	e := newEnv(t, true, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "" {
			return
		}
		_ = http.NewResponseController(w).Flush()
		<-release
	})
	defer close(release)
	watch := func(account string) *http.Response {
		return e.do(t, "GET", "/api/v1/pods?watch=1", nil, "Account", account)
	}
	for i := range accountLong {
		if resp := watch("greedy"); resp.StatusCode != 200 {
			t.Fatalf("watch %d: %d, want 200", i, resp.StatusCode)
		}
	}
	if resp := watch("greedy"); resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("a watch above the share: %d, want 429 with Retry-After", resp.StatusCode)
	}
	for range longStreams - accountLong {
		if resp := watch("other"); resp.StatusCode != 200 {
			t.Fatalf("a watch of another account: %d, want 200", resp.StatusCode)
		}
	}
	if resp := watch("third"); resp.StatusCode != 429 {
		t.Errorf("a watch when all streams for watches are taken: %d, want 429", resp.StatusCode)
	}
	if resp := e.do(t, "GET", "/version", nil, "Account", "greedy"); resp.StatusCode != 200 {
		t.Errorf("a short request: %d, want 200", resp.StatusCode)
	}
	if n := e.forwarder.Streams(); n < longStreams || n > longStreams+1 {
		t.Errorf("%d streams in use, want %d", n, longStreams)
	}
}

// TestUploadsAreLimited: 2 MiB/s for an account, in all of its requests.
func TestUploadsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		uploads := ratelimit.New[string](uploadRate, uploadBurst)
		const size = 3 << 20
		begun := time.Now()
		done := make(chan struct{})
		for range 2 {
			go func() {
				w := httptest.NewRecorder()
				c := &client{
					ResponseWriter: w,
					control:        http.NewResponseController(w),
					ctx:            t.Context(),
					uploads:        uploads,
					account:        "a",
				}
				body := c.body(io.NopCloser(bytes.NewReader(make([]byte, size))))
				if n, err := io.Copy(io.Discard, body); n != size || err != nil {
					t.Errorf("%d bytes, %v; want %d", n, err, size)
				}
				done <- struct{}{}
			}()
		}
		<-done
		<-done
		want := time.Duration(float64(2*size-uploadBurst) / uploadRate * float64(time.Second))
		if took := time.Since(begun); took < want || took > want+time.Second {
			t.Errorf("%d bytes took %v, want %v", 2*size, took, want)
		}
	})
}

func TestAnswer(t *testing.T) {
	get := apirequest.Of(httptest.NewRequest("GET", "/api/v1/pods", nil))
	put := apirequest.Of(httptest.NewRequest("PUT", "/api/v1/nodes/a", nil))
	other := errors.New("x")
	for name, tc := range map[string]struct {
		info            apirequest.Info
		err             error
		sent, connected bool
		want            int32
		after           int32
	}{
		"read, not sent":               {get, other, false, true, 503, 1},
		"read, sent":                   {get, other, true, true, 503, 1},
		"read, sent, link lost":        {get, other, true, false, 503, 5},
		"change, not sent":             {put, other, false, true, 503, 1},
		"change, not sent, link lost":  {put, other, false, false, 503, 5},
		"change, sent":                 {put, other, true, true, 504, 0},
		"change, sent, link lost":      {put, other, true, false, 504, 0},
		"change, body larger than max": {put, &http.MaxBytesError{Limit: 1}, true, true, 413, 0},
	} {
		got := answer(&tc.info, tc.err, tc.sent, tc.connected, time.Time{})
		var after int32
		if got.Details != nil {
			after = got.Details.RetryAfterSeconds
		}
		if got.Code != tc.want || after != tc.after {
			t.Errorf("%s: %d, again after %d s; want %d and %d", name, got.Code, after, tc.want, tc.after)
		}
	}
}
