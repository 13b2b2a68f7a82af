package metaserver

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	yamux "github.com/libp2p/go-yamux/v5"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/metaserver/forward"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// cluster is cloudcore and kube-apiserver, at the other end of a connection with streams.
type cluster struct {
	mu      sync.Mutex
	session *yamux.Session // the device's end; nil without a link
	cut     func()
	since   time.Time
}

func (c *cluster) Open(ctx context.Context) (net.Conn, error) {
	c.mu.Lock()
	session := c.session
	c.mu.Unlock()
	if session == nil {
		return nil, errors.New("no link")
	}
	return session.Open(ctx)
}

func (c *cluster) Connected() (bool, time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session != nil, c.since
}

// connect makes a link, over which api is served.
func (c *cluster) connect(t *testing.T, api http.HandlerFunc) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	config := yamux.DefaultConfig()
	config.LogOutput, config.EnableKeepAlive = io.Discard, false
	session, err := yamux.Client(near, config, nil)
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := yamux.Server(far, config, nil)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: api}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(sessionListener{accepted})
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session = session
	c.cut = sync.OnceFunc(func() {
		c.mu.Lock()
		c.session, c.since = nil, time.Now()
		c.mu.Unlock()
		_ = session.Close()
		_ = accepted.Close()
		_ = srv.Close()
		<-served
	})
	t.Cleanup(c.cut)
}

type sessionListener struct{ *yamux.Session }

func (l sessionListener) Accept() (net.Conn, error) { return l.AcceptStream() }
func (l sessionListener) Addr() net.Addr            { return l.LocalAddr() }

// pods has every pod, at no address.
type pods struct{}

func (pods) HasAddress(netip.Addr) bool { return false }
func (pods) Has(types.UID) bool         { return true }

// tokens hands over one token, then fails once told to.
type tokens struct {
	request []byte
	fail    chan error
}

func (s *tokens) Follow(ctx context.Context, sink TokenSink) error {
	sink.Stored("row", s.request, true)
	select {
	case err := <-s.fail:
		return err
	case <-ctx.Done():
		return nil
	}
}

const podToken = "e30.eyJpc3MiOiJ4In0.c2ln"

// tokenRequest is the answer to a request for a token of a pod.
func tokenRequest() (token string, request []byte) {
	claims := `{"iss":"x","kubernetes.io":{"namespace":"shop","serviceaccount":{"name":"web"},"pod":{"uid":"p1"}}}`
	token = "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
	return token, fmt.Appendf(nil, `{"status":{"token":%q}}`, token)
}

// env is a device with an endpoint on the loopback, run by a bus.
type env struct {
	*cluster
	server *Server
	tokens *tokens
	token  string
	client *http.Client
	old    *http.Client // without HTTP/2
	base   string
}

// newEnv makes one. streams is nil for those of the cluster, which is not connected.
func newEnv(t *testing.T, streams forward.Streams) *env {
	t.Helper()
	e := &env{cluster: &cluster{since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}}
	if streams == nil {
		streams = e.cluster
	}
	token, request := tokenRequest()
	e.token, e.tokens = token, &tokens{request, make(chan error)}
	var err error
	if e.server, err = New(Options{
		Node:       "n1",
		Dir:        t.TempDir(),
		Server:     netip.MustParseAddrPort("127.0.0.1:0"),
		ClusterIPs: func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("10.96.0.1")} },
		Domain:     "cluster.local",
		Streams:    streams,
		Tokens:     e.tokens,
		Pods:       pods{},
		Now:        time.Now,
		Fault: func(object string, err error) {
			if err != nil {
				t.Errorf("%s: %v", object, err)
			}
		},
	}); err != nil {
		t.Fatal(err)
	}
	bus := beehive.New()
	if err := bus.Add(e.server); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- bus.Run(ctx) }()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(e.server.CA())
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: pool, ServerName: "kubernetes.default.svc.cluster.local"},
		ForceAttemptHTTP2: true,
	}
	old := &http.Transport{TLSClientConfig: transport.TLSClientConfig.Clone()}
	e.client, e.old = &http.Client{Transport: transport}, &http.Client{Transport: old}
	t.Cleanup(func() {
		stop()
		if err := wait.Receive(t, "the end of the bus", ended); err != nil {
			t.Error(err)
		}
		transport.CloseIdleConnections()
		old.CloseIdleConnections()
	})
	e.await(t)
	return e
}

// await waits until the endpoint is served, and knows the token.
func (e *env) await(t *testing.T) {
	t.Helper()
	wait.True(t, "the endpoint to be served", func() bool {
		r := e.server.Report()
		if len(r.Served) == 0 || r.Tokens == 0 {
			return false
		}
		e.base = "https://" + r.Served[0]
		return true
	})
}

func (e *env) get(t *testing.T, path string) *http.Response {
	t.Helper()
	return e.do(t, "GET", path, "")
}

// do sends a request of the pod. An upgrade goes over HTTP/1.1, as clients do it.
func (e *env) do(t *testing.T, method, path, body string, headers ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(wait.Context(t), method, e.base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+e.token)
	r.Header.Set("User-Agent", "kubectl")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	client := e.client
	if len(headers) > 0 {
		client = e.old
	}
	resp, err := client.Do(r)
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

// TestThroughACut: requests are answered by the cluster, by 503 while there is no link, and by the cluster again. A
// watch ends with the link.
func TestThroughACut(t *testing.T) {
	e := newEnv(t, nil)
	api := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+e.token {
			t.Errorf("Authorization = %q, want that of the pod", r.Header.Get("Authorization"))
		}
		_, _ = io.WriteString(w, "one\n")
		if r.URL.Query().Get("watch") != "" {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	}
	offline := func() {
		t.Helper()
		resp := e.get(t, "/api/v1/namespaces/shop/pods/a")
		text, err := io.ReadAll(resp.Body)
		if resp.StatusCode != 503 || !strings.Contains(string(text), "has no connection to its cluster since") {
			t.Errorf("without a link: %d %s (%v), want 503 with since when", resp.StatusCode, text, err)
		}
	}
	offline()
	e.connect(t, api)
	watch := e.get(t, "/api/v1/pods?watch=1")
	lines := bufio.NewReader(watch.Body)
	if line, err := lines.ReadString('\n'); err != nil || line != "one\n" {
		t.Fatalf("first event %q, %v; want one", line, err)
	}
	if got := e.server.Report(); got.Clients["shop/web"].Watches != 1 || got.Streams != 1 {
		t.Errorf("report %+v, want one watch of shop/web and one stream", got)
	}
	e.cut()
	if _, err := lines.ReadString('\n'); err == nil {
		t.Error("the watch goes on after the cut, want its end")
	}
	offline()
	e.connect(t, api)
	if resp := e.get(t, "/version"); resp.StatusCode != 200 {
		t.Errorf("after the link is back: %d, want 200", resp.StatusCode)
	}
}

// TestRestarts: when a part fails, the bus runs the module again, and clients are served as before.
func TestRestarts(t *testing.T) {
	e := newEnv(t, nil)
	e.connect(t, func(http.ResponseWriter, *http.Request) {})
	first := e.base
	e.tokens.fail <- errors.New("the store is gone")
	wait.True(t, "the endpoint to be served again", func() bool {
		r := e.server.Report()
		return len(r.Served) > 0 && "https://"+r.Served[0] != first && r.Tokens == 1
	})
	e.await(t)
	if resp := e.get(t, "/version"); resp.StatusCode != 200 {
		t.Errorf("after the restart: %d, want 200", resp.StatusCode)
	}
}

func TestReport(t *testing.T) {
	e := newEnv(t, nil)
	got := e.server.Report()
	if len(got.Served) != 1 || got.CertificateUntil.Before(time.Now()) || got.Tokens != 1 || len(got.Clients) != 0 {
		t.Errorf("report %+v, want an address, a certificate that is valid, a token and no clients", got)
	}
	if err := prometheus.NewRegistry().Register(e.server); err != nil {
		t.Error(err)
	}
}

// TestSink: only tokens for kube-apiserver are known.
func TestSink(t *testing.T) {
	e := newEnv(t, nil)
	s := sink{e.server.tokens}
	token, request := tokenRequest()
	s.Removed("row")
	for _, noAudience := range []bool{false, true} {
		s.Stored("other", request, noAudience)
		if _, known := e.server.tokens.Of(token); known != noAudience {
			t.Errorf("a token, requested without audience %v, is known: %v", noAudience, known)
		}
	}
	s.Stored("damaged", []byte(`{"status":{"token":"`+podToken+`"}}`), true)
	if n := e.server.tokens.Len(); n != 1 {
		t.Errorf("%d tokens, want one", n)
	}
}

// TestHealthWithoutLink: probes of the endpoint are about the endpoint.
func TestHealthWithoutLink(t *testing.T) {
	e := newEnv(t, nil)
	w := httptest.NewRecorder()
	e.server.endpoint.ServeHTTP(w, httptest.NewRequest("GET", "/livez", nil))
	if w.Code != 200 || w.Body.String() != "ok" {
		t.Errorf("livez without a link: %d %q, want 200 ok", w.Code, w.Body)
	}
}
