package wire

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	cloudcerts "github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/edgehub/nodecert"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// began is when the tests of certificates take place.
var began = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// notes are what went over HTTPS, in words for what is another each time.
type notes struct {
	mu   sync.Mutex
	text strings.Builder
}

func (n *notes) add(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fmt.Fprintf(&n.text, format+"\n", args...)
}

// golden compares with a file of testdata/https.
func (n *notes) golden(t *testing.T, name string) {
	t.Helper()
	file := filepath.Join("testdata", "https", name+".txt")
	if *update {
		if err := os.WriteFile(file, []byte(n.text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(n.text.String(), "\n")); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// watch notes what a handler is asked, and what it answers.
func (n *notes) watch(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // what was cut off shows in the note
		n.add("> %s %s %s", r.Method, r.URL, r.Proto)
		n.headers(">", r.Header)
		for _, cert := range r.TLS.PeerCertificates {
			n.add("> shows the %s", describe(cert.Raw))
		}
		n.body(">", body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, r)
		n.add("< %d", answer.Code)
		n.headers("<", answer.Header())
		n.body("<", answer.Body.Bytes())
		w.Header()["Date"] = nil // no clock but that of the test
		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes()) // the client may be gone
	})
}

func (n *notes) headers(way string, h http.Header) {
	for _, name := range slices.Sorted(maps.Keys(h)) {
		value := strings.Join(h[name], ", ")
		if token, is := strings.CutPrefix(value, "Bearer "); is && strings.Count(token, ".") == 2 {
			parts := strings.Split(token, ".")
			head, _ := base64.RawURLEncoding.DecodeString(parts[0])
			claims, _ := base64.RawURLEncoding.DecodeString(parts[1])
			value = fmt.Sprintf("Bearer JWT of %s %s", head, claims)
		}
		if name == "Content-Length" {
			value = "(that of the body)"
		}
		if at, err := http.ParseTime(value); err == nil && at.After(began) {
			value = "(later)" // when it renews is left to chance
		}
		n.add("%s %s: %s", way, name, value)
	}
}

func (n *notes) body(way string, body []byte) {
	if len(body) > 0 {
		n.add("%s is %s", way, describe(body))
	}
}

// describe says what DER is; a text it quotes.
func describe(body []byte) string {
	if req, err := x509.ParseCertificateRequest(body); err == nil {
		return fmt.Sprintf("certificate request in DER: %s, key %s, signed by %s, %d other names",
			req.Subject.ToRDNSequence(), req.PublicKeyAlgorithm, req.SignatureAlgorithm,
			len(req.DNSNames)+len(req.IPAddresses)+len(req.URIs))
	}
	if cert, err := x509.ParseCertificate(body); err == nil {
		from := "(later)"
		if cert.NotBefore.Before(began) {
			from = cert.NotBefore.Format(time.RFC3339)
		}
		subject := cert.Subject
		if certs.HolderOf(cert) != "" { // by chance
			subject.SerialNumber = "(of this join)"
		}
		return fmt.Sprintf("certificate in DER: %s, of %s, key %s, usage %#x for %v, CA %v, from %s for %v",
			subject, cert.Issuer, cert.PublicKeyAlgorithm, int(cert.KeyUsage), cert.ExtKeyUsage, cert.IsCA, from,
			cert.NotAfter.Sub(cert.NotBefore))
	}
	return fmt.Sprintf("%q", body)
}

// clock is that of both ends; it goes on when someone sleeps.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) sleep(ctx context.Context, d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
	return ctx.Err()
}

// authority is our cloud's side, with one node.
func authority(t *testing.T, c *clock) (*cloudcerts.Authority, cloudcerts.Nodes) {
	t.Helper()
	client := fake.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "taken"}})
	a, err := cloudcerts.New(t.Context(), client.CoreV1().Secrets(cloudcerts.Namespace),
		cloudcerts.Options{
			Addresses:    []string{"127.0.0.1"},
			Now:          c.now,
			ProtectTaken: true,
			NodeLifetime: 24 * time.Hour,
		})
	if err != nil {
		t.Fatal(err)
	}
	return a, client.CoreV1().Nodes()
}

func serveTLS(t *testing.T, a *cloudcerts.Authority, h http.Handler) string {
	t.Helper()
	config := a.ServerTLS(tls.RequestClientCert)
	config.NextProtos = []string{"http/1.1"}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	done := make(chan error, 1)
	go func() { done <- server.Serve(tls.NewListener(l, config)) }()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return l.Addr().String()
}

func tokenOf(t *testing.T, a *cloudcerts.Authority, node string) string {
	t.Helper()
	made, err := a.NewToken(node, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return made.String()
}

// TestHTTPS: our edge joins our cloud, asks whether a name is taken, and renews its certificate.
func TestHTTPS(t *testing.T) {
	c := &clock{t: began}
	a, nodes := authority(t, c)
	var n notes
	addr := serveTLS(t, a, n.watch(a.Handler(nodes)))
	dir := t.TempDir()
	keeper := func(node string) *nodecert.Keeper {
		return nodecert.New(nodecert.Options{
			Server: "https://" + addr,
			Node:   node,
			Now:    c.now,
			Sleep:  c.sleep,
			Files: certs.Files{
				CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, "edge.crt"),
				Key: filepath.Join(dir, "edge.key"),
			},
			Proxy: func(*http.Request) (*url.URL, error) { return nil, nil },
		})
	}
	outcome := func(err error) string { return strings.ReplaceAll(fmt.Sprint(err), addr, "ADDRESS") }
	text := tokenOf(t, a, "")
	for _, name := range []string{"taken", node} {
		n.add("# is %s taken?", name)
		taken, err := keeper(name).NameTaken(t.Context(), text)
		n.add("= %v %s", taken, outcome(err))
	}
	n.add("# join")
	n.add("= %s", outcome(keeper(node).Join(t.Context(), text)))
	n.add("# join under a name that is taken")
	n.add("= %s", outcome(keeper("taken").Join(t.Context(), text)))
	n.add("# renew")
	ctx, cancel := context.WithCancel(wait.Context(t))
	defer cancel()
	keeper(node).Rotate(ctx, cancel)
	n.golden(t, "ours")
}

// TestHTTPSOfKubeEdgesEdge: what KubeEdge's edges ask of our cloud, byte by byte: a GET that has a body.
func TestHTTPSOfKubeEdgesEdge(t *testing.T) {
	a, nodes := authority(t, &clock{t: began})
	var n notes
	addr := serveTLS(t, a, n.watch(a.Handler(nodes)))
	bearer := func(text string) string {
		_, after, _ := strings.Cut(text, ".")
		return "Authorization: Bearer " + after
	}
	ask := func(path, headers string, body []byte) {
		conn, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: a.Pool(), Time: func() time.Time { return began }})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		length := ""
		if len(body) > 0 {
			length = fmt.Sprintf("Content-Length: %d\r\n", len(body))
		}
		if headers != "" {
			headers += "\r\n"
		}
		fmt.Fprintf(conn,
			"GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: Go-http-client/1.1\r\n%s%sAccept-Encoding: gzip\r\n\r\n%s",
			path, addr, length, headers, body)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	csr := func(version string) []byte {
		der, err := os.ReadFile(filepath.Join("testdata", "https", "kubeedge-"+version+".csr.der"))
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	good := bearer(tokenOf(t, a, ""))
	ask("/ca.crt", "", nil)
	ask("/node/edge1", "", nil)
	ask("/node/taken", "", nil)
	for _, version := range []string{"v1.12", "v1.23"} {
		n.add("# a first certificate, %s", version)
		ask("/edge.crt", good+"\r\nNodename: edge1", csr(version))
	}
	for _, wrong := range []struct{ what, header string }{
		{"no token", "Nodename: edge1"},
		{"a token that is not split", "Authorization: x\r\nNodename: edge1"},
		{"a token that is no JWT", "Authorization: Bearer x.y.z\r\nNodename: edge1"},
		{"no name", good},
		{"another name than in the request", good + "\r\nNodename: edge2"},
		{"usages of a server", good + "\r\nNodename: edge1\r\nExtKeyUsages: [1]"},
		{"usages of a client", good + "\r\nNodename: edge1\r\nExtKeyUsages: [2]"},
	} {
		n.add("# %s", wrong.what)
		ask("/edge.crt", wrong.header, csr("v1.23"))
	}
	n.golden(t, "edge")
}

// TestHTTPSOfKubeEdgesCloud: what KubeEdge's clouds answer our edge, and what it makes of that.
func TestHTTPSOfKubeEdgesCloud(t *testing.T) {
	a, _ := authority(t, &clock{t: began})
	ca, text := a.CA().Raw, tokenOf(t, a, "")
	for _, tc := range []struct {
		what          string
		node, edge    int
		nodeIs        string
		edgeIs, caDER []byte
	}{
		{what: "v1.24: there is such a node", node: 200, nodeIs: "Node found", caDER: ca},
		{what: "v1.23: there is such a node", node: 200, nodeIs: "Node founded", caDER: ca},
		{what: "there is none", node: 404, nodeIs: "Node not found", caDER: ca},
		{what: "before v1.20: no such question", node: 404, nodeIs: "404: Page Not Found", caDER: ca},
		{what: "the API server is away", node: 500, nodeIs: "failed to get node", caDER: ca},
		{what: "no token", edge: 401, edgeIs: []byte("token validation failure, token is empty"), caDER: ca},
		{
			what:   "a token that has ended",
			edge:   401,
			edgeIs: []byte("token validation failure, err: token has invalid claims: token is expired"),
			caDER:  ca,
		},
		{
			what:   "it cannot sign",
			edge:   500,
			edgeIs: []byte("failed to sign certs for edgenode edge-1, err: x"),
			caDER:  ca,
		},
		{what: "another CA", caDER: []byte("x")},
	} {
		t.Run(tc.what, func(t *testing.T) {
			var n notes
			n.add("# %s", tc.what)
			mux := http.NewServeMux() // no types, no dates: raw bytes
			mux.HandleFunc("/ca.crt", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(tc.caDER) })
			mux.HandleFunc("/node/", func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tc.node)
				_, _ = io.WriteString(w, tc.nodeIs)
			})
			mux.HandleFunc("/edge.crt", func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tc.edge)
				_, _ = w.Write(tc.edgeIs)
			})
			addr := serveTLS(t, a, n.watch(mux))
			dir := t.TempDir()
			keeper := nodecert.New(nodecert.Options{
				Server: "https://" + addr,
				Node:   node,
				Now:    func() time.Time { return began },
				Files: certs.Files{
					CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, "edge.crt"),
					Key: filepath.Join(dir, "edge.key"),
				},
				Proxy: func(*http.Request) (*url.URL, error) { return nil, nil },
			})
			if tc.edge != 0 {
				err := keeper.Join(t.Context(), text)
				n.add("= %s", strings.ReplaceAll(fmt.Sprint(err), addr, "ADDRESS"))
			} else {
				taken, err := keeper.NameTaken(t.Context(), text)
				n.add("= %v %s", taken, strings.ReplaceAll(fmt.Sprint(err), addr, "ADDRESS"))
			}
			n.golden(t, "cloud-"+strings.Map(func(r rune) rune {
				if r == ' ' || r == ':' {
					return '-'
				}
				return r
			}, tc.what))
		})
	}
}
