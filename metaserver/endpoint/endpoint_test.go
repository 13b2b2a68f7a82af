package endpoint

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/metaserver/apirequest"
	"github.com/edgecore-io/edgecore/metaserver/devicecert"
	"github.com/edgecore-io/edgecore/metaserver/forward"
	"github.com/edgecore-io/edgecore/metaserver/identity"
	"github.com/edgecore-io/edgecore/pkg/ratelimit"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// device is what the endpoint asks about pods, and what forwards its requests.
type device struct {
	tokens  *identity.Table
	gone    atomic.Bool
	forward func(http.ResponseWriter, *http.Request, *forward.Request)
}

func (d *device) HasAddress(addr netip.Addr) bool { return addr == netip.MustParseAddr("10.1.0.9") }
func (d *device) Has(types.UID) bool              { return !d.gone.Load() }

func (d *device) Serve(w http.ResponseWriter, r *http.Request, req *forward.Request) {
	d.forward(w, r, req)
}

// env is an endpoint that listens on the loopback.
type env struct {
	*device
	endpoint *Endpoint
	address  string
	tls      *tls.Config
	client   *http.Client
	stop     context.CancelFunc
	ended    chan struct{}
}

// newEnv makes one whose requests serve answers. change, if any, is called before it runs.
func newEnv(
	t *testing.T, serve func(http.ResponseWriter, *http.Request, *forward.Request), change ...func(*Endpoint),
) *env {
	t.Helper()
	cert, err := devicecert.Open(devicecert.Options{
		Dir:   t.TempDir(),
		Node:  "n1",
		Names: func() devicecert.Names { return devicecert.NamesOf(nil, nil, "") },
		Now:   time.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	e := &env{device: &device{tokens: identity.NewTable(time.Now), forward: serve}, ended: make(chan struct{})}
	listening := make(chan string, 1)
	e.endpoint = New(Options{
		Listen:      []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")},
		Certificate: cert.Get,
		Tokens:      e.tokens,
		Pods:        e.device,
		Forward:     e.device,
		Listening: func(address string, err error) {
			if err != nil {
				t.Errorf("%s: %v", address, err)
			}
			listening <- address
		},
	})
	for _, change := range change {
		change(e.endpoint)
	}
	ctx, stop := context.WithCancel(context.Background())
	e.stop = stop
	go func() {
		defer close(e.ended)
		e.endpoint.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		e.client.CloseIdleConnections()
		wait.Closed(t, "the end of the endpoint", e.ended)
	})
	e.address = wait.Receive(t, "the endpoint to listen", listening)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert.CA())
	e.tls = &tls.Config{RootCAs: pool, ServerName: "kubernetes.default.svc"}
	e.client = &http.Client{Transport: &http.Transport{TLSClientConfig: e.tls.Clone(), ForceAttemptHTTP2: true}}
	return e
}

// know makes a token one of a pod of the device.
func (e *env) know(t *testing.T, token string) {
	t.Helper()
	if err := e.tokens.Stored(token, identity.NewToken(token, identity.Identity{
		Pod: "p1", Account: identity.Account{Namespace: "shop", Name: "web"},
	})); err != nil {
		t.Fatal(err)
	}
}

func (e *env) do(t *testing.T, method, path, token string, body io.Reader) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(wait.Context(t), method, "https://"+e.address+path, body)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
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

// account answers with the account as which a request is limited.
func account(w http.ResponseWriter, _ *http.Request, req *forward.Request) {
	_, _ = io.WriteString(w, req.Account)
}

// TestCallers: a token of a pod has the limits of its account, another one those of its source, and a request without
// one is not forwarded.
func TestCallers(t *testing.T) {
	e := newEnv(t, account)
	e.know(t, "of-pod")
	for path, want := range map[string]string{"/livez": "ok", "/readyz": "ok", "/healthz": "ok"} {
		if resp := e.do(t, "GET", path, "", nil); resp.StatusCode != 200 || read(t, resp) != want {
			t.Errorf("%s: %d, want 200 and %q without a token", path, resp.StatusCode, want)
		}
	}
	resp := e.do(t, "GET", "/api/v1/pods", "", nil)
	var status metav1.Status
	if err := json.Unmarshal([]byte(read(t, resp)), &status); err != nil || resp.StatusCode != 401 ||
		status.Reason != metav1.StatusReasonUnauthorized {
		t.Errorf("without a token: %d %+v (%v), want a Status of 401", resp.StatusCode, status, err)
	}
	if resp.ProtoMajor != 2 {
		t.Errorf("protocol %s, want HTTP/2", resp.Proto)
	}
	const strange = "unknown token from 127.0.0.1/32"
	if got := read(t, e.do(t, "GET", "/api/v1/pods", "of-pod", nil)); got != "shop/web" {
		t.Errorf("a token of a pod has the limits of %q, want shop/web", got)
	}
	if got := read(t, e.do(t, "GET", "/api/v1/pods", "other", nil)); got != strange {
		t.Errorf("an unknown token has the limits of %q, want %q", got, strange)
	}
	e.gone.Store(true)
	if got := read(t, e.do(t, "GET", "/api/v1/pods", "of-pod", nil)); got != strange {
		t.Errorf("a token of a pod that is gone has the limits of %q, want %q", got, strange)
	}
}

func TestTokenOf(t *testing.T) {
	protocol := webSocketToken + base64.RawURLEncoding.EncodeToString([]byte("secret"))
	for name, tc := range map[string]struct {
		header http.Header
		want   string
	}{
		"none":               {http.Header{}, ""},
		"bearer":             {http.Header{"Authorization": {"Bearer secret"}}, "secret"},
		"lower case, spaces": {http.Header{"Authorization": {" bearer   secret "}}, "secret"},
		"empty":              {http.Header{"Authorization": {"Bearer "}}, ""},
		"basic":              {http.Header{"Authorization": {"Basic c2VjcmV0"}}, ""},
		"WebSocket":          {http.Header{"Sec-Websocket-Protocol": {"v4.channel.k8s.io, " + protocol}}, "secret"},
		"WebSocket, damaged": {http.Header{"Sec-Websocket-Protocol": {webSocketToken + "!"}}, ""},
	} {
		if got := tokenOf(tc.header); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// TestTooLarge: neither headers nor bodies above the limits are kept.
func TestTooLarge(t *testing.T) {
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request, _ *forward.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err == nil || n > maxBody {
			t.Errorf("%d bytes of a body, %v; want an error after %d", n, err, maxBody)
		}
	})
	e.know(t, "t")
	body := make([]byte, maxBody+1)
	if resp := e.do(t, "POST", "/api/v1/pods", "t", strings.NewReader(string(body))); resp.StatusCode != 413 {
		t.Errorf("a body that says its length: %d, want 413", resp.StatusCode)
	}
	_ = e.do(t, "POST", "/api/v1/pods", "t", io.MultiReader(strings.NewReader(string(body)))) // see above
	conn, err := tls.Dial("tcp", e.address, e.tls)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	head := "GET /version HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer t\r\nX: " + strings.Repeat("x", 2*maxHeader)
	_, _ = io.WriteString(conn, head+"\r\n\r\n") // the server may have answered already
	answer := make([]byte, 12)
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "HTTP/1.1 431" {
		t.Errorf("a header above the limit: %q, %v; want 431", answer, err)
	}
}

// TestConnectionsOfASource: a source has its share of connections at most.
func TestConnectionsOfASource(t *testing.T) {
	e := newEnv(t, account, func(e *Endpoint) {
		e.sources.rate = ratelimit.New[netip.Prefix](1000, 1000) // this test opens many at once
	})
	for range maxSourceConns + 10 {
		conn, err := tls.Dial("tcp", e.address, e.tls)
		if err != nil {
			continue
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	if all, _ := e.endpoint.conns.Counts(); all != maxSourceConns {
		t.Errorf("a source has %d connections, want %d", all, maxSourceConns)
	}
}

// TestAgentEnds: Run waits for requests under way, which end with it, also when they have changed the protocol.
func TestAgentEnds(t *testing.T) {
	began := make(chan struct{}, 2)
	var ended atomic.Int32
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request, req *forward.Request) {
		defer ended.Add(1)
		if req.Info.IsUpgrade {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
		}
		began <- struct{}{}
		<-r.Context().Done()
	})
	e.know(t, "t")
	for _, upgrade := range []string{"", "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"} {
		conn, err := tls.Dial("tcp", e.address, e.tls)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer t\r\n"+
			upgrade+"\r\n"); err != nil {
			t.Fatal(err)
		}
		wait.Receive(t, "the request to begin", began)
	}
	if got := e.endpoint.Clients()["shop/web"]; got.Watches != 2 || got.Requests != 0 {
		t.Errorf("shop/web has %+v under way, want 2 watches", got)
	}
	e.stop()
	wait.Closed(t, "the end of the endpoint", e.ended)
	if n := ended.Load(); n != 2 {
		t.Errorf("%d requests had ended when Run returned, want 2", n)
	}
	if n := len(e.endpoint.Clients()); n != 0 {
		t.Errorf("%d clients have something under way, want none", n)
	}
}

// TestAddressComesLater: the endpoint can listen on an address that the machine does not have yet.
func TestAddressComesLater(t *testing.T) {
	config := net.ListenConfig{Control: freebind}
	for _, address := range []string{"192.0.2.99:0", "[2001:db8::99]:0"} {
		l, err := config.Listen(t.Context(), "tcp", address)
		if err != nil {
			t.Errorf("listen on %s: %v", address, err)
			continue
		}
		_ = l.Close()
	}
}

// TestMetrics: what clients choose does not make new values of labels.
func TestMetrics(t *testing.T) {
	e := newEnv(t, account)
	e.know(t, "t")
	for _, method := range []string{"GET", "MADE-UP", "OTHER-ONE"} {
		_ = read(t, e.do(t, method, "/api", "t", nil))
	}
	_ = read(t, e.do(t, "GET", "/api", "", nil))
	e.client.CloseIdleConnections()
	registry := prometheus.NewRegistry()
	registry.MustRegister(e.endpoint)
	var got []string
	wait.True(t, "all requests to be counted", func() bool {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got = nil
		for _, f := range families {
			for _, m := range f.GetMetric() {
				text := f.GetName()
				for _, l := range m.GetLabel() {
					text += " " + l.GetValue()
				}
				if m.GetCounter().GetValue() > 0 {
					got = append(got, text)
				}
			}
		}
		return len(got) == 4
	})
	want := []string{
		"edgecore_api_refused_total no_token", "edgecore_api_requests_total 200 cluster get",
		"edgecore_api_requests_total 200 cluster other", "edgecore_api_requests_total 401 device get",
	}
	if !slices.Equal(got, want) {
		t.Errorf("metrics %q, want %q", got, want)
	}
}

func TestRecorder(t *testing.T) {
	for name, tc := range map[string]struct {
		codes   []int
		upgrade bool
		want    int
	}{
		"nothing written": {nil, false, 200},
		"upgraded":        {nil, true, 101},
		"first one":       {[]int{404, 500}, false, 404},
		"informational":   {[]int{103, 201}, false, 201},
		"refused upgrade": {[]int{403}, true, 403},
	} {
		r := &recorder{ResponseWriter: httptest.NewRecorder()}
		for _, code := range tc.codes {
			r.WriteHeader(code)
		}
		if got := r.status(tc.upgrade); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

func TestHealthPaths(t *testing.T) {
	for path, want := range map[string]bool{
		"/livez": true, "/readyz/": true, "/healthz": true, "/livez/etcd": false, "/": false, "/api/v1/pods": false,
	} {
		r := httptest.NewRequest("GET", path, nil)
		info := apirequest.Of(r)
		if got := isHealth("GET", &info); got != want {
			t.Errorf("%s is answered on the device: %v, want %v", path, got, want)
		}
		if isHealth("POST", &info) {
			t.Errorf("POST %s is answered on the device, want it forwarded", path)
		}
	}
}
