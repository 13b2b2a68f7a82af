package nodecert_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	cloud "github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/edgehub/nodecert"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// clock is what tests have for a clock; to sleep is to set it.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func (c *clock) sleep(ctx context.Context, d time.Duration) error {
	c.add(d)
	return ctx.Err()
}

// testCloud is the real cloud end, on a port of its own.
type testCloud struct {
	*cloud.Authority
	clock   *clock
	address string
}

// newCloud starts one; its clock is the test's. taken are the names of nodes that it has.
func newCloud(t testing.TB, c *clock, change func(*cloud.Options), taken ...string) *testCloud {
	t.Helper()
	opts := cloud.Options{Addresses: []string{"127.0.0.1", "cloud.example"}, Now: c.now}
	if change != nil {
		change(&opts)
	}
	client := fake.NewClientset()
	for _, name := range taken {
		if _, err := client.CoreV1().Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return serveCloudWith(t, c, client, opts)
}

// serveCloud starts one beside others that share the secrets.
func serveCloud(t testing.TB, c *clock, client kubernetes.Interface) *testCloud {
	t.Helper()
	return serveCloudWith(t, c, client, cloud.Options{Addresses: []string{"127.0.0.1", "cloud.example"}, Now: c.now})
}

func serveCloudWith(t testing.TB, c *clock, client kubernetes.Interface, opts cloud.Options) *testCloud {
	t.Helper()
	a, err := cloud.New(t.Context(), client.CoreV1().Secrets(cloud.Namespace), opts)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tc := &testCloud{Authority: a, clock: c, address: listener.Addr().String()}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- a.Serve(ctx, listener, client.CoreV1().Nodes()) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return tc
}

func (c *testCloud) token(t testing.TB, node string) string {
	t.Helper()
	token, err := c.NewToken(node, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return token.String()
}

func testFiles(t testing.TB) certs.Files {
	dir := t.TempDir()
	return certs.Files{CA: dir + "/ca/rootCA.crt", Cert: dir + "/certs/server.crt", Key: dir + "/certs/server.key"}
}

// options are those of a device of this cloud.
func (c *testCloud) options(t testing.TB, token string) nodecert.Options {
	return nodecert.Options{
		Server: "https://" + c.address, Node: "edge1", Files: testFiles(t), Now: c.clock.now, Sleep: c.clock.sleep,
		Token: func() (string, error) { return token, nil },
	}
}

// oldCloud is KubeEdge's side, written from the protocol: it notes what comes and signs what it is asked for.
type oldCloud struct {
	t   *testing.T
	ca  *cloud.Authority
	now func() time.Time
	// answer changes what is answered on a path, if it is set and returns true.
	answer func(w http.ResponseWriter, r *http.Request) bool

	mu       sync.Mutex
	requests []oldRequest
}

type oldRequest struct {
	method, path, auth, node, usages, peer string
	csr                                    []byte
}

func (o *oldCloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		o.t.Error(err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	req := oldRequest{
		method: r.Method,
		path:   r.URL.Path,
		auth:   r.Header.Get("Authorization"),
		node:   r.Header.Get("NodeName"),
		usages: r.Header.Get("ExtKeyUsages"),
		csr:    body,
	}
	if len(r.TLS.PeerCertificates) > 0 {
		req.peer = r.TLS.PeerCertificates[0].Subject.String()
	}
	o.mu.Lock()
	o.requests = append(o.requests, req)
	o.mu.Unlock()
	if o.now != nil {
		w.Header().Set("Date", o.now().UTC().Format(http.TimeFormat))
	}
	if o.answer != nil && o.answer(w, r) {
		return
	}
	switch r.URL.Path {
	case "/ca.crt":
		w.Write(o.ca.CA().Raw)
	case "/edge.crt":
		if parts := strings.Split(req.auth, " "); req.peer == "" && len(parts) != 2 {
			http.Error(w, "token validation failure, token cannot be split", http.StatusUnauthorized)
			return
		}
		csr, err := x509.ParseCertificateRequest(body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		der, err := o.ca.SignNode(strings.TrimPrefix(csr.Subject.CommonName, "system:node:"), csr)
		if err != nil {
			o.t.Error(err)
		}
		w.Write(der)
	default:
		http.NotFound(w, r)
	}
}

func (o *oldCloud) all() []oldRequest {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]oldRequest(nil), o.requests...)
}

// start serves on a port of its own and returns the URL.
func (o *oldCloud) start(t testing.TB) string {
	t.Helper()
	server := httptest.NewUnstartedServer(o)
	server.TLS = serverTLS(t, o.ca)
	server.Config.ErrorLog = quiet()
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL
}

func quiet() *log.Logger { return log.New(io.Discard, "", 0) }

// serverTLS has the certificate in the place where httptest looks for one.
func serverTLS(t testing.TB, a *cloud.Authority) *tls.Config {
	t.Helper()
	config := a.ServerTLS(tls.RequestClientCert)
	cert, err := config.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	config.Certificates = []tls.Certificate{*cert}
	return config
}
