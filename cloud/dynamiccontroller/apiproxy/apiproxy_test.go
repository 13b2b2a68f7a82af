package apiproxy

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/shares"
	"github.com/edgecore-io/edgecore/pkg/tunnel"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

const node = "edge-1"

// secret is in all credentials of cloudcore.
const secret = "of-cloudcore"

// env is a proxy between a node and a server that stands for kube-apiserver.
type env struct {
	t        *testing.T
	api      *httptest.Server
	proxy    *Proxy
	opener   *tunnel.APIOpener
	client   *http.Client
	registry *prometheus.Registry

	mu   sync.Mutex
	seen []*http.Request // by the server
}

// start starts them. The proxy's configuration has every kind of credentials.
func start(t *testing.T, handle http.HandlerFunc) *env {
	t.Helper()
	e := &env{t: t, registry: prometheus.NewRegistry()}
	e.api = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		e.seen = append(e.seen, r)
		e.mu.Unlock()
		handle(w, r)
	}))
	e.api.EnableHTTP2 = true
	e.api.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	e.api.StartTLS()
	t.Cleanup(e.api.Close)
	cert, key := ownCertificate(t)
	rc := &rest.Config{
		Host:        e.api.URL,
		BearerToken: secret,
		Username:    secret,
		Password:    secret,
		UserAgent:   secret,
		Impersonate: rest.ImpersonationConfig{UserName: secret, Groups: []string{secret}},
		TLSClientConfig: rest.TLSClientConfig{
			CAData:   certs.EncodeCertPEM(e.api.Certificate().Raw),
			CertData: cert,
			KeyData:  key,
		},
	}
	rc.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			r = r.Clone(r.Context())
			r.Header.Set("X-Own", secret)
			return next.RoundTrip(r)
		})
	})
	var err error
	if e.proxy, err = New(Options{Config: rc, Registry: e.registry}); err != nil {
		t.Fatal(err)
	}
	e.run()
	return e
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// run runs the proxy and the node's connection.
func (e *env) run() {
	e.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cloud, far := tcpPair(e.t)
	acceptor, err := tunnel.NewAPIAcceptor(cloud, shares.NewMemory())
	if err != nil {
		e.t.Fatal(err)
	}
	if e.opener, err = tunnel.NewAPIOpener(far); err != nil {
		e.t.Fatal(err)
	}
	var parts sync.WaitGroup
	parts.Go(func() {
		if err := e.proxy.Run(ctx); err != nil {
			e.t.Errorf("Run = %v, want nil when its context ends", err)
		}
	})
	parts.Go(func() { _ = acceptor.Serve(func(s net.Conn) { e.proxy.ServeStream(node, s) }) })
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return e.opener.Open(ctx) },
		// A device has a stream for each request.
		MaxIdleConnsPerHost: tunnel.APIStreams,
		DisableCompression:  true,
	}
	e.client = &http.Client{Transport: transport}
	e.t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = e.opener.Close()
		cancel()
		parts.Wait()
	})
}

// ownCertificate returns a client certificate of cloudcore's, in PEM.
func ownCertificate(t *testing.T) (cert, key []byte) {
	t.Helper()
	own := wiretest.NewCA(t).Node(t, secret, time.Now().Add(time.Hour))
	key, err := certs.EncodeKeyPEM(own.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	return certs.EncodeCertPEM(own.Certificate[0]), key
}

func tcpPair(t *testing.T) (net.Conn, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	one, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = one.Close(); _ = other.Close() })
	return one, other
}

// request makes a request of a client on the node, with its token.
func (e *env) request(method, path string, body io.Reader) *http.Request {
	e.t.Helper()
	r, err := http.NewRequestWithContext(e.t.Context(), method, "http://kubernetes"+path, body)
	if err != nil {
		e.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer of-the-pod")
	return r
}

// do sends a request, and returns the answer and its body.
func (e *env) do(r *http.Request) (*http.Response, []byte) {
	e.t.Helper()
	answer, err := e.client.Do(r)
	if err != nil {
		e.t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		e.t.Fatal(err)
	}
	return answer, body
}

// counted returns how many requests were answered with a code.
func (e *env) counted(code string) float64 {
	e.t.Helper()
	var m dto.Metric
	if err := e.proxy.answered.WithLabelValues(code).Write(&m); err != nil {
		e.t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

// requests returns what the server has seen.
func (e *env) requests() []*http.Request {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seen
}

// wantStatus checks that an answer is an error in kube-apiserver's form.
func wantStatus(t *testing.T, answer *http.Response, body []byte, code int, reason metav1.StatusReason, retry string) {
	t.Helper()
	var s metav1.Status
	if err := json.Unmarshal(body, &s); err != nil || s.Kind != "Status" || s.Status != metav1.StatusFailure ||
		s.Reason != reason || int(s.Code) != code || s.Message == "" || answer.StatusCode != code ||
		answer.Header.Get("Retry-After") != retry || answer.Header.Get("Content-Type") != "application/json" {
		t.Errorf("status %d, Retry-After %q, %s, %v; want a Status with %d, %s, Retry-After %q", answer.StatusCode,
			answer.Header.Get("Retry-After"), body, err, code, reason, retry)
	}
}

// TestNoCredentialsOfCloudcore: kube-apiserver sees the client's credentials alone, over HTTP/2 as in an upgrade.
// Nothing of cloudcore's is in any header, and there is no client certificate.
func TestNoCredentialsOfCloudcore(t *testing.T) {
	e := start(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") })
	for name, change := range map[string]func(r *http.Request){
		"plain":   func(*http.Request) {},
		"upgrade": func(r *http.Request) { r.Header.Set("Connection", "Upgrade"); r.Header.Set("Upgrade", "SPDY/3.1") },
		"Authorization as a header of the connection": func(r *http.Request) {
			r.Header.Set("Connection", "Authorization")
		},
	} {
		r := e.request(http.MethodGet, "/api/v1/pods", nil)
		change(r)
		want := r.Header.Values("Authorization")
		if answer, body := e.do(r); answer.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d, %s; want 200", name, answer.StatusCode, body)
			continue
		}
		all := e.requests()
		got := all[len(all)-1]
		if diff := cmp.Diff(want, got.Header.Values("Authorization")); diff != "" {
			t.Errorf("%s: Authorization (-want +got):\n%s", name, diff)
		}
		if text := fmt.Sprint(got.Header); strings.Contains(text, secret) || got.Header.Get("Impersonate-User") != "" {
			t.Errorf("%s: headers %s, want nothing of cloudcore's", name, text)
		}
		if n := len(got.TLS.PeerCertificates); n != 0 {
			t.Errorf("%s: %d client certificates, want none", name, n)
		}
		if proto, http2 := got.Proto, name != "upgrade"; (proto == "HTTP/2.0") != http2 {
			t.Errorf("%s: over %s, want HTTP/2: %v", name, proto, http2)
		}
	}
}

// TestAnonymous: a request without Authorization is answered here, and kube-apiserver does not see it.
func TestAnonymous(t *testing.T) {
	e := start(t, func(http.ResponseWriter, *http.Request) {})
	for _, change := range []func(r *http.Request){
		func(r *http.Request) { r.Header.Del("Authorization") },
		func(r *http.Request) { r.Header.Set("Authorization", "") },
		func(r *http.Request) { r.Header.Set("Authorization", "Basic YTpi") },
		func(r *http.Request) { r.Header.Set("Authorization", "Bearer ") },
		func(r *http.Request) {
			r.Header.Del("Authorization")
			r.Header.Set("Connection", "Upgrade")
			r.Header.Set("Upgrade", "websocket")
		},
	} {
		r := e.request(http.MethodGet, "/api/v1/pods", nil)
		change(r)
		answer, body := e.do(r)
		wantStatus(t, answer, body, 401, metav1.StatusReasonUnauthorized, "")
	}
	if n := len(e.requests()); n != 0 {
		t.Errorf("kube-apiserver has seen %d requests, want none", n)
	}
	if got := e.counted("401"); got != 5 {
		t.Errorf("cloudcore_api_forwarded_total{code=\"401\"} = %v, want 5", got)
	}
}

// TestHeaders: headers that speak for others do not pass; the client's own do.
func TestHeaders(t *testing.T) {
	e := start(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	const uri = "/apis/apps/v1/namespaces/a%2Fb/deployments?dryRun=All&x=%20"
	r := e.request(http.MethodPost, uri, strings.NewReader("body"))
	for _, name := range []string{
		"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Uri", "Forwarded", "X-Real-Ip", "X-Remote-User",
		"X-Remote-Group", "X-Remote-Uid", "X-Remote-Extra-Scopes", "x-remote-user", "Proxy-Authorization", "Keep-Alive",
		"X-Hop",
	} {
		r.Header.Set(name, "system:masters")
	}
	r.Header.Set("Connection", "X-Hop")
	r.Header.Set("Impersonate-User", "jane")
	r.Header.Set("Impersonate-Group", "dev")
	r.Header.Set("User-Agent", "kubectl/v1.36")
	r.Header.Set("Accept", "application/json")
	answer, body := e.do(r)
	if answer.StatusCode != 200 || string(body) != "body" {
		t.Errorf("status %d, %q; want 200 and the body", answer.StatusCode, body)
	}
	seen := e.requests()[0]
	want := http.Header{
		"Authorization":     {"Bearer of-the-pod"},
		"Impersonate-User":  {"jane"},
		"Impersonate-Group": {"dev"},
		"User-Agent":        {"kubectl/v1.36 edgecore/" + node},
		"Accept":            {"application/json"},
		"Content-Length":    {"4"},
	}
	if diff := cmp.Diff(want, seen.Header); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if seen.RequestURI != uri || seen.Host != e.api.Listener.Addr().String() {
		t.Errorf("request to %s%s, want the path as it was, at the server", seen.Host, seen.RequestURI)
	}
	r = e.request(http.MethodGet, "/version", nil)
	r.Header["User-Agent"] = nil
	e.do(r)
	if got := e.requests()[1].Header.Values("User-Agent"); len(got) > 0 {
		t.Errorf("User-Agent %q of a client that sends none, want none", got)
	}
}

// TestBodyLimit: a body of 3 MiB passes; a larger one is 413, with and without a length.
func TestBodyLimit(t *testing.T) {
	e := start(t, func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err == nil {
			_, _ = fmt.Fprint(w, n)
		}
	})
	post := func(body io.Reader) (*http.Response, []byte) {
		return e.do(e.request(http.MethodPost, "/api/v1/namespaces/a/configmaps", body))
	}
	if answer, body := post(bytes.NewReader(make([]byte, bodyBytes))); answer.StatusCode != 200 ||
		string(body) != fmt.Sprint(bodyBytes) {
		t.Errorf("status %d, %s for the largest body, want 200", answer.StatusCode, body)
	}
	answer, body := post(bytes.NewReader(make([]byte, bodyBytes+1)))
	wantStatus(t, answer, body, 413, metav1.StatusReasonRequestEntityTooLarge, "")
	answer, body = post(io.MultiReader(bytes.NewReader(make([]byte, bodyBytes+1)))) // without a length
	wantStatus(t, answer, body, 413, metav1.StatusReasonRequestEntityTooLarge, "")
}

// TestHeaderLimits: a request whose header is too large, or does not come, is not served.
func TestHeaderLimits(t *testing.T) {
	e := start(t, func(http.ResponseWriter, *http.Request) {})
	r := e.request(http.MethodGet, "/version", nil)
	r.Header.Set("X-Large", strings.Repeat("x", headerBytes+8<<10))
	if answer, _ := e.do(r); answer.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("status %d, want 431", answer.StatusCode)
	}
	if n := len(e.requests()); n != 0 {
		t.Errorf("kube-apiserver has seen %d requests, want none", n)
	}
}

// TestHeaderTime: a stream whose request does not come is closed after 10 seconds.
func TestHeaderTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := New(Options{Config: &rest.Config{Host: "https://192.0.2.1"}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.Run(ctx) }()
		near, far := net.Pipe()
		p.ServeStream(node, near)
		began := time.Now()
		if _, err := io.WriteString(far, "GET / HTTP/1.1\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(far); err != nil || time.Since(began) != headerTimeout {
			t.Errorf("the stream has ended after %v, %v; want %v", time.Since(began), err, headerTimeout)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
		near, far = net.Pipe()
		p.ServeStream(node, near)
		if _, err := far.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("Read of a stream after the end = %v, want EOF", err)
		}
	})
}

// TestWatch: each event reaches the client as soon as kube-apiserver has sent it, uncompressed; so do the headers.
func TestWatch(t *testing.T) {
	events, ended := make(chan string), make(chan struct{})
	e := start(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		w.Header().Set("Content-Type", "application/json")
		_ = http.NewResponseController(w).Flush()
		for {
			select {
			case event := <-events:
				_, _ = io.WriteString(w, event)
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	})
	r := e.request(http.MethodGet, "/api/v1/pods?watch=1", nil)
	r.Header.Set("Accept-Encoding", "gzip")
	answer, err := e.client.Do(r) // returns with the headers
	if err != nil {
		t.Fatal(err)
	}
	if got := answer.Header.Get("Content-Encoding"); got != "" {
		t.Errorf("Content-Encoding %q of a watch, want none", got)
	}
	lines := bufio.NewReader(answer.Body)
	for i := range 3 {
		event := fmt.Sprintf("{\"type\":\"ADDED\",\"object\":%d,\"x\":%q}\n", i, strings.Repeat("x", 2000*i))
		events <- event
		if got, err := lines.ReadString('\n'); err != nil || got != event {
			t.Fatalf("read %.40q, %v; want the event", got, err)
		}
	}
	_ = answer.Body.Close()
	wait.Closed(t, "kube-apiserver to be told that the client is gone", ended)
}

// TestCompression: JSON of more than 1 KiB is compressed for a client that takes gzip, if kube-apiserver has not done
// so.
func TestCompression(t *testing.T) {
	large := []byte(`{"items":"` + strings.Repeat("item ", 100_000) + `"}`)
	own := &bytes.Buffer{}
	w := gzip.NewWriter(own)
	_, _ = w.Write(large)
	_ = w.Close()
	const jsonType, pods = "application/json", "/api/v1/pods"
	for name, tc := range map[string]struct {
		body           []byte
		length         bool
		kind, encoding string
		accepts        string
		path           string
		want           string
		sameLength     bool
	}{
		"large":                   {large, true, jsonType, "", "gzip", pods, "gzip", false},
		"without a length":        {large, false, jsonType, "", "gzip", pods, "gzip", false},
		"with parameters":         {large, true, jsonType + ";charset=utf-8", "", "br, gzip;q=1", pods, "gzip", false},
		"small":                   {large[:1000], true, jsonType, "", "gzip", pods, "", true},
		"small, without a length": {large[:1000], false, jsonType, "", "gzip", pods, "", true},
		"not JSON":                {large, true, "application/vnd.k8s", "", "gzip", pods, "", true},
		"client does not take it": {large, true, jsonType, "", "identity", pods, "", true},
		"client refuses it":       {large, true, jsonType, "", "gzip;q=0", pods, "", true},
		"compressed":              {own.Bytes(), true, jsonType, "gzip", "gzip", pods, "gzip", true},
		"an old watch":            {large, true, jsonType, "", "gzip", "/api/v1/watch/pods", "", true},
		"a watch":                 {large, true, jsonType, "", "gzip", "/api/v1/pods?watch=true", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			e := start(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", tc.kind)
				if tc.encoding != "" {
					w.Header().Set("Content-Encoding", tc.encoding)
				}
				if tc.length {
					w.Header().Set("Content-Length", fmt.Sprint(len(tc.body)))
				} else {
					defer func() { _ = http.NewResponseController(w).Flush() }()
				}
				_, _ = w.Write(tc.body)
			})
			r := e.request(http.MethodGet, tc.path, nil)
			r.Header.Set("Accept-Encoding", tc.accepts)
			answer, body := e.do(r)
			if got := answer.Header.Get("Content-Encoding"); got != tc.want {
				t.Fatalf("Content-Encoding %q, want %q", got, tc.want)
			}
			if got := len(body) == len(tc.body); got != tc.sameLength {
				t.Errorf("%d bytes of %d; want the same: %v", len(body), len(tc.body), tc.sameLength)
			}
			if tc.want == "gzip" {
				z, err := gzip.NewReader(bytes.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				if got, err := io.ReadAll(z); err != nil || !bytes.Equal(got, large) {
					t.Errorf("%d bytes, %v; want what kube-apiserver has sent", len(got), err)
				}
			} else if !bytes.Equal(body, tc.body) {
				t.Error("other bytes than kube-apiserver has sent, want these")
			}
			if n := e.proxy.gzips.budget.Taken(); n != 0 {
				t.Errorf("%d compressors are taken after the answer, want none", n)
			}
		})
	}
}

// TestTruncated: an answer that kube-apiserver breaks off is not a complete one for the client, compressed or not.
func TestTruncated(t *testing.T) {
	for _, accepts := range []string{"gzip", "identity"} {
		e := start(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(make([]byte, 100<<10))
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		})
		r := e.request(http.MethodGet, "/api/v1/pods", nil)
		r.Header.Set("Accept-Encoding", accepts)
		answer, err := e.client.Do(r)
		if err == nil {
			_, err = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
		}
		if err == nil {
			t.Errorf("%s: the client reads the answer without an error, want one", accepts)
		}
		wait.True(t, "the compressor to be returned", func() bool { return e.proxy.gzips.budget.Taken() == 0 })
	}
}

// TestUnreachable: where kube-apiserver does not answer, the client may repeat what has done nothing.
func TestUnreachable(t *testing.T) {
	e := start(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	answer, body := e.do(e.request(http.MethodGet, "/api/v1/pods", nil))
	wantStatus(t, answer, body, 503, metav1.StatusReasonServiceUnavailable, "1")
	answer, body = e.do(e.request(http.MethodPost, "/api/v1/namespaces/a/pods", strings.NewReader("{}")))
	wantStatus(t, answer, body, 504, metav1.StatusReasonTimeout, "")
	answer, body = e.do(e.request(http.MethodDelete, "/api/v1/namespaces/a/pods/x", nil))
	wantStatus(t, answer, body, 504, metav1.StatusReasonTimeout, "")
	e.api.Close()
	e.proxy.transports.closeIdle() // or a request is sent on a connection whose end is not known yet
	answer, body = e.do(e.request(http.MethodPost, "/api/v1/namespaces/a/pods", strings.NewReader("{}")))
	wantStatus(t, answer, body, 503, metav1.StatusReasonServiceUnavailable, "1")
}

// TestUpgrade: an upgraded connection carries bytes both ways, the end of it reaches both ends, and a node has no more
// of them than its share.
func TestUpgrade(t *testing.T) {
	e := start(t, func(w http.ResponseWriter, r *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Errorf("hijack over %s: %v", r.Proto, err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\n"+
			"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
		line, _ := buffered.ReadString('\n')
		_, _ = io.WriteString(conn, "you said "+line)
	})
	open := func() (net.Conn, *bufio.Reader, *http.Response) {
		conn, err := e.opener.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r := e.request(http.MethodPost, "/api/v1/namespaces/a/pods/x/exec", nil)
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "SPDY/3.1")
		if err := r.Write(conn); err != nil {
			t.Fatal(err)
		}
		reader := bufio.NewReader(conn)
		answer, err := http.ReadResponse(reader, r)
		if err != nil {
			t.Fatal(err)
		}
		return conn, reader, answer
	}
	var conns []net.Conn
	var readers []*bufio.Reader
	for range nodeUpgrades {
		conn, reader, answer := open()
		if answer.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("status %d, want 101", answer.StatusCode)
		}
		conns, readers = append(conns, conn), append(readers, reader)
	}
	conn, _, answer := open()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	wantStatus(t, answer, body, 429, metav1.StatusReasonTooManyRequests, "1")
	_ = conn.Close()
	for i, conn := range conns {
		if _, err := io.WriteString(conn, "hello\n"); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(readers[i]); err != nil || string(got) != "you said hello\n" {
			t.Errorf("read %q, %v; want the answer and the end", got, err)
		}
		_ = conn.Close()
	}
	wait.True(t, "the places to be free", func() bool { return e.proxy.upgrades.Taken() == 0 })
	if got := e.counted("101"); got != nodeUpgrades {
		t.Errorf("cloudcore_api_forwarded_total{code=\"101\"} = %v, want %d", got, nodeUpgrades)
	}
}

// TestEndsWithItsContext: Run ends what is under way: a watch, and an upgraded connection.
func TestEndsWithItsContext(t *testing.T) {
	began := make(chan struct{}, 2)
	e := start(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		began <- struct{}{}
		<-r.Context().Done()
	})
	for range 2 {
		r := e.request(http.MethodGet, "/api/v1/pods?watch=1", nil)
		go func() {
			if answer, err := e.client.Do(r); err == nil {
				_ = answer.Body.Close()
			}
		}()
		wait.Receive(t, "the watch", began)
	} // the end of the test waits for Run
}

// liveHeap is how many bytes of the heap are in use after a collection.
func liveHeap() int64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

// TestUnreadAnswers: a node that reads nothing of 64 large answers makes cloudcore keep what the package says, and no
// more.
func TestUnreadAnswers(t *testing.T) {
	var sent sync.Map
	e := start(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		chunk := bytes.Repeat([]byte("{}"), 8<<10)
		for n := 0; ; n += len(chunk) {
			if _, err := w.Write(chunk); err != nil {
				return
			}
			sent.Store(r.URL.Path, n)
		}
	})
	before := liveHeap()
	var streams []net.Conn
	for i := range tunnel.APIStreams {
		conn, err := e.opener.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r := e.request(http.MethodGet, fmt.Sprintf("/api/v1/pods/%d", i), nil)
		r.Header.Set("X-Large", strings.Repeat("x", 16<<10))
		if err := r.Write(conn); err != nil {
			t.Fatal(err)
		}
		streams = append(streams, conn)
	}
	total := func() (sum, answers int) {
		sent.Range(func(_, n any) bool { sum += n.(int); answers++; return true })
		return sum, answers
	}
	last := -1
	wait.True(t, "nothing more to be sent", func() bool {
		time.Sleep(200 * time.Millisecond) // what is still on its way is sent meanwhile
		now, answers := total()
		defer func() { last = now }()
		return now == last && answers == tunnel.APIStreams
	})
	// The node's end of the streams is in this process as well: it has received a window of each.
	const limit, ofNode = 48 << 20, tunnel.APIStreams * 256 << 10
	got := liveHeap() - before
	t.Logf("%d KiB for %d KiB of answers", got>>10, last>>10)
	if got > limit+ofNode {
		t.Errorf("%d KiB for unread answers, want at most %d", got>>10, (limit+ofNode)>>10)
	}
	for _, s := range streams {
		_ = s.Close()
	}
}

// TestUserAgent: the name before the slash, which kube-apiserver takes for the manager of fields, stays as it is.
func TestUserAgent(t *testing.T) {
	for own, want := range map[string]string{
		"":                      "",
		"kubectl/v1.36 (linux)": "kubectl/v1.36 (linux) edgecore/edge-1",
		"operator":              "operator/unknown edgecore/edge-1",
	} {
		if got := userAgent(own, node); got != want {
			t.Errorf("userAgent(%q) = %q, want %q", own, got, want)
		}
	}
}

// TestIsWatch: what kube-apiserver takes for a watch is not compressed.
func TestIsWatch(t *testing.T) {
	for uri, want := range map[string]bool{
		"/api/v1/pods":             false,
		"/api/v1/pods?watch=0":     false,
		"/api/v1/pods?watch=False": false,
		"/api/v1/pods?watch=true":  true,
		"/api/v1/pods?watch=yes":   true,
		"/api/v1/pods?watch":       true,
		"/api/v1/watch/pods":       true,
	} {
		if got := isWatch(httptest.NewRequest(http.MethodGet, uri, nil)); got != want {
			t.Errorf("isWatch(%s) = %v, want %v", uri, got, want)
		}
	}
}

// TestRate: a node that sends too many requests gets 429, and kube-apiserver does not see them; others are served.
func TestRate(t *testing.T) {
	e := start(t, func(http.ResponseWriter, *http.Request) {})
	now := time.Now()
	e.proxy.rates.Of(node, now).ReserveN(now, nodeBurst)
	e.proxy.rates.Of(node, now).ReserveN(now, nodeBurst) // for two seconds to come
	answer, body := e.do(e.request(http.MethodGet, "/api/v1/pods", nil))
	wantStatus(t, answer, body, 429, metav1.StatusReasonTooManyRequests, "1")
	if n := len(e.requests()); n != 0 {
		t.Errorf("kube-apiserver has seen %d requests, want none", n)
	}
	if !e.proxy.rates.Of("edge-2", now).AllowN(now, 1) {
		t.Error("another node may send nothing, want it to")
	}
}
