package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/pkg/auth"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/shares"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// guardian admits users that may do one thing, and keeps what it was asked.
type guardian struct {
	may   string
	asked string
}

func (g *guardian) Check(_ *http.Request, verb string, subs ...string) error {
	g.asked = verb + " " + strings.Join(subs, "|")
	for _, sub := range subs {
		if g.may == "all" || g.may == verb+" "+sub {
			return nil
		}
	}
	return &auth.Refusal{Code: 403, Text: "Forbidden"}
}

func secure(g Guard, debugging bool, routes ...Route) http.Handler {
	n := &node{}
	return NewSecure(Options{
		Node:      n,
		Registry:  NewRegistry("node1", n, &health.Registry{}),
		Debugging: debugging,
		Routes:    routes,
	}, g)
}

// TestEachRouteAsks: what the authorizer is asked about each route, which is what a kubelet asks.
func TestEachRouteAsks(t *testing.T) {
	logs := t.TempDir()
	if err := os.WriteFile(filepath.Join(logs, "syslog"), []byte("a line"), 0o644); err != nil {
		t.Fatal(err)
	}
	missing := fmt.Errorf("container x: %w", fs.ErrNotExist)
	routes := []Route{
		Configz(func() any { return map[string]int{"maxPods": 7} }),
		RunningPods(func() []*v1.Pod { return []*v1.Pod{{}} }),
		SystemLogs(logs),
		LogLevel(),
		Checkpoint(func(_ context.Context, ns, pod, c string, timeout int64) (string, error) {
			if c == "x" {
				return "", missing
			}
			return fmt.Sprint(ns, "/", pod, "/", c, "/", timeout), nil
		}),
		{
			Pattern:   "/exec/{namespace}/{pod}/{container}",
			Verb:      "create",
			Methods:   []string{"GET", "POST"},
			Debugging: true,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				text(w, "ran in "+r.PathValue("pod"))
			}),
		},
		{Pattern: "/{$}", LocalOnly: true, ReadOnly: true, Handler: http.NotFoundHandler()},
	}
	routes = append(routes, Profiling()...)
	for _, c := range []struct {
		method, path, asks string
		code               int
		want               string
	}{
		{"GET", "/pods", "get pods|proxy", 200, `"name":"a"`},
		{"GET", "/pods/", "get pods|proxy", 200, `"name":"a"`},
		{"HEAD", "/pods", "get pods|proxy", 200, ""},
		{"POST", "/pods", "create pods|proxy", 405, "not one of GET, HEAD"},
		{"GET", "/runningpods/", "get pods|proxy", 200, `"kind":"PodList"`},
		{"GET", "/healthz", "get healthz|proxy", 200, "ok"},
		{"GET", "/healthz/syncloop", "get healthz|proxy", 200, "ok"},
		{"GET", "/configz", "get configz|proxy", 200, `{"kubeletconfig":{"maxPods":7}}`},
		{"GET", "/metrics", "get metrics", 200, "kubelet_running_pods"},
		{"GET", "/logs/", "get log", 200, `<a href="syslog">`},
		{"GET", "/logs/syslog", "get log", 200, "a line"},
		{"GET", "/logs/none", "get log", 404, ""},
		{"GET", "/events", "get proxy", 200, "EventList"},
		{"GET", "/exec/n/p/c", "create proxy", 200, "ran in p"},
		{"POST", "/exec/n/p/c", "create proxy", 200, "ran in p"},
		{"POST", "/checkpoint/n/p/c?timeout=7", "create checkpoint", 200, `{"items":["n/p/c/7"]}`},
		{"POST", "/checkpoint/n/p/c?timeout=x", "create checkpoint", 400, "want a number"},
		{"POST", "/checkpoint/n/p/c?timeout=3601", "create checkpoint", 400, "from 0 to 3600"},
		{"POST", "/checkpoint/n/p/x", "create checkpoint", 404, "container x"},
		{"GET", "/checkpoint/n/p/c", "get checkpoint", 405, ""},
		{"GET", "/debug/pprof/", "get proxy", 200, "goroutine"},
		{"GET", "/debug/pprof/cmdline", "get proxy", 200, ""},
		{"PUT", "/debug/flags/v", "update proxy", 400, "not a log level"},
		{"GET", "/none", "get proxy", 404, ""},
		{"GET", "/", "get proxy", 404, ""},
		{"DELETE", "/pods", "delete pods|proxy", 405, ""},
	} {
		g := &guardian{may: "all"}
		w := request(secure(g, true, routes...), c.method, "node:10250", c.path)
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.want) || g.asked != c.asks {
			t.Errorf("%s %s: asked %q, %d %.300s; want %q, %d with %q", c.method, c.path, g.asked, w.Code, w.Body,
				c.asks, c.code, c.want)
		}
		g = &guardian{}
		if w := request(secure(g, true, routes...), c.method, "node:10250", c.path); w.Code != 403 ||
			strings.TrimSpace(w.Body.String()) != "Forbidden" {
			t.Errorf("%s %s without a right: %d %s, want 403, \"Forbidden\"", c.method, c.path, w.Code, w.Body)
		}
	}
	for path, may := range map[string]string{
		"/pods": "get proxy", "/configz": "get configz", "/metrics": "get metrics",
	} {
		if w := request(secure(&guardian{may: may}, true, routes...), "GET", "x", path); w.Code != 200 {
			t.Errorf("%s with %s: %d, want 200", path, may, w.Code)
		}
	}
	for path, may := range map[string]string{
		"/metrics": "get proxy", "/logs/syslog": "get proxy", "/exec/n/p/c": "get proxy",
	} {
		if w := request(secure(&guardian{may: may}, true, routes...), "GET", "x", path); w.Code != 403 {
			t.Errorf("%s with %s: %d, want 403", path, may, w.Code)
		}
	}
	for path, code := range map[string]int{
		"/exec/n/p/c": 405, "/logs/syslog": 405, "/configz": 405, "/debug/pprof/": 405, "/pods": 200, "/metrics": 200,
	} {
		if w := request(secure(&guardian{may: "all"}, false, routes...), "GET", "x", path); w.Code != code {
			t.Errorf("%s without debugging handlers: %d, want %d", path, w.Code, code)
		}
	}
	if w := request(New(Options{
		Node: &node{}, Registry: NewRegistry("node1", &node{}, &health.Registry{}), Routes: routes,
	}), "GET", "localhost", "/exec/n/p/c"); w.Code != 404 {
		t.Errorf("the read-only port runs things: %d, want 404", w.Code)
	}
}

// TestSystemLogsStayInside: pods that may write into the log folder do not get at the rest of the disk, nor hold up the
// agent.
func TestSystemLogsStayInside(t *testing.T) {
	dir := t.TempDir()
	logs := filepath.Join(dir, "log")
	secret := filepath.Join(dir, "secret")
	for _, err := range []error{
		os.Mkdir(logs, 0o755), os.WriteFile(secret, []byte("hunter2"), 0o644),
		os.Symlink(secret, filepath.Join(logs, "absolute")),
		os.Symlink("../secret", filepath.Join(logs, "relative")), os.Symlink("..", filepath.Join(logs, "up")),
		syscall.Mkfifo(filepath.Join(logs, "pipe"), 0o644),
		os.WriteFile(filepath.Join(logs, "inside"), []byte("fine"), 0o644),
		os.Symlink("inside", filepath.Join(logs, "link")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	h := secure(&guardian{may: "all"}, true, SystemLogs(logs))
	for path, code := range map[string]int{
		"absolute": 404, "relative": 404, "up/secret": 404, "pipe": 404, "..%2fsecret": 404, "link": 200, "inside": 200,
	} {
		w := request(h, "GET", "x", "/logs/"+path)
		if w.Code != code || strings.Contains(w.Body.String(), "hunter2") {
			t.Errorf("%s: %d %s, want %d", path, w.Code, w.Body, code)
		}
	}
	if w := request(secure(&guardian{may: "all"}, true, SystemLogs(filepath.Join(dir, "none"))), "GET", "x",
		"/logs/"); w.Code != 404 {
		t.Errorf("no folder: %d, want 404", w.Code)
	}
}

// TestSystemLogsListing: a folder that a pod filled is not listed to its end; a file that is left out is served all the
// same.
func TestSystemLogsListing(t *testing.T) {
	logs := t.TempDir()
	for i := range maxEntries + 5 {
		if err := os.WriteFile(filepath.Join(logs, strconv.Itoa(i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(logs, "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	h := secure(&guardian{may: "all"}, true, SystemLogs(logs))
	list := request(h, "GET", "x", "/logs/").Body.String()
	if got, want := strings.Count(list, "<a "), maxEntries+1; got != want ||
		!strings.Contains(list, "only 10000 entries") {
		t.Errorf("%d links, want %d, and one that says so: %.200s", got, want, list[max(0, len(list)-200):])
	}
	for _, path := range []string{"empty/", "0", "10004"} {
		if w := request(h, "GET", "x", "/logs/"+path); w.Code != 200 || strings.Contains(w.Body.String(), "<a ") {
			t.Errorf("%s: %d %s, want 200 and no links", path, w.Code, w.Body)
		}
	}
}

func TestOneCheckpointAtATime(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	h := secure(&guardian{
		may: "all",
	}, true, Checkpoint(func(context.Context, string, string, string, int64) (string, error) {
		close(begun)
		<-end
		return "", errors.New("the runtime cannot")
	}))
	first := make(chan int)
	go func() { first <- request(h, "POST", "x", "/checkpoint/n/p/c").Code }()
	<-begun
	if w := request(h, "POST", "x", "/checkpoint/n/p/c"); w.Code != 429 {
		t.Errorf("%d, want 429", w.Code)
	}
	close(end)
	if code := <-first; code != 500 {
		t.Errorf("%d, want 500", code)
	}
}

func TestTLSOptions(t *testing.T) {
	for _, c := range []struct {
		o    TLSOptions
		want string
	}{
		{TLSOptions{}, ""}, {TLSOptions{MinVersion: "VersionTLS13"}, ""}, {TLSOptions{CipherSuites: Suites()}, ""},
		{TLSOptions{MinVersion: "VersionTLS10"}, `"VersionTLS10": want one of`},
		{TLSOptions{CipherSuites: []string{"RC4"}}, `"RC4": want one of`},
	} {
		got, err := TLS(c.o, nil)
		if c.want == "" && (err != nil || got.MinVersion < tls.VersionTLS12 ||
			len(got.CipherSuites) != len(c.o.CipherSuites)) ||
			c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("TLS(%+v) = %+v, %v, want TLS 1.2 or later, these cipher suites, error %q", c.o, got, err, c.want)
		}
	}
}

// certificate is one that a server and a client may use.
func certificate() tls.Certificate {
	own := httptest.NewTLSServer(nil)
	defer own.Close()
	return own.TLS.Certificates[0]
}

// securedBy serves a handler. The cluster has signed each certificate that a client shows.
func securedBy(t *testing.T, h http.Handler) *Secured {
	t.Helper()
	cert := certificate()
	config, err := TLS(TLSOptions{}, func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil })
	if err != nil {
		t.Fatal(err)
	}
	return &Secured{Handler: h, TLS: config, Known: func([]*x509.Certificate) bool { return true }}
}

// listening serves a handler over TLS until the test ends, and returns its address.
func listening(t *testing.T, h http.Handler) string {
	t.Helper()
	port, err := daemon.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	secured := securedBy(t, h)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- secured.Serve(ctx, address) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	wait.Until(t, "the server to listen", func() error {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		return c.Close()
	})
	return address
}

// TestServeTLS: HTTP/1.1 over TLS, streams without a deadline, upgraded connections, and an end that ends them all.
func TestServeTLS(t *testing.T) {
	ended := make(chan struct{})
	stream := Route{
		Pattern: "/stream", Stream: true, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintln(w, r.Proto)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			close(ended)
		}),
	}
	hijack := Route{
		Pattern: "/hijack", Stream: true, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\n\r\nhello")
		}),
	}
	client := &http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true},
	}
	t.Cleanup(client.CloseIdleConnections)
	t.Run("served", func(t *testing.T) {
		address := listening(t, secure(&guardian{may: "all"}, true, stream, hijack))
		resp, err := client.Get("https://" + address + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != 200 || resp.Proto != "HTTP/1.1" {
			t.Errorf("the answer is %s %s, want 200 HTTP/1.1", resp.Status, resp.Proto)
		}
		if resp, err := client.Get("http://" + address + "/healthz"); err == nil {
			if resp.StatusCode == 200 {
				t.Errorf("GET without TLS = %s, want an error or another status than 200", resp.Status)
			}
			_ = resp.Body.Close()
		}
		resp, err = client.Get("https://" + address + "/stream")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		if line, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || line != "HTTP/1.1\n" {
			t.Errorf("first line %q, %v; want \"HTTP/1.1\\n\"", line, err)
		}
		c, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET /hijack HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if data, err := io.ReadAll(c); err != nil || !strings.HasSuffix(string(data), "hello") {
			t.Errorf("hijacked connection says %q, %v; want it to end with \"hello\"", data, err)
		}
	})
	wait.Closed(t, "the stream to end with its server", ended)
}

// TestAdmissionOnTheSecurePort: a request that is refused ends its connection, one that is allowed admits it.
func TestAdmissionOnTheSecurePort(t *testing.T) {
	for may, want := range map[string]string{"all": "keep-alive", "none": "close"} {
		conns := make(chan net.Conn, 1)
		route := Route{Pattern: "/conn", Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			conns <- r.Context().Value(connKey{}).(net.Conn)
		})}
		address := listening(t, secure(&guardian{may: may}, true, route))
		c, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET /conn HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		got := "keep-alive"
		if resp.Close {
			got = "close"
		}
		if got != want {
			t.Errorf("%s: the connection is %s, want %s", may, got, want)
		}
		if may != "all" {
			continue
		}
		server := shares.Of(wait.Receive(t, "the request", conns))
		if server == nil || !server.Admitted() {
			t.Errorf("the request's connection %v is not admitted, want it to be", server)
		}
	}
}
