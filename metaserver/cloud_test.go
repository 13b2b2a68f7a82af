package metaserver

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/edgecore-io/edgecore/cloud/dynamiccontroller/apiproxy"
	"github.com/edgecore-io/edgecore/edgehub/apitunnel"
	"github.com/edgecore-io/edgecore/pkg/shares"
	"github.com/edgecore-io/edgecore/pkg/tunnel"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// throughCloud has an endpoint whose requests go through the real ends of the connection to the cloud, and cloudcore's
// proxy, to api. lost ends the connection.
func throughCloud(t *testing.T, api http.HandlerFunc) (e *env, lost func()) {
	t.Helper()
	server := httptest.NewUnstartedServer(api)
	server.EnableHTTP2 = true
	server.StartTLS()
	proxy, err := apiproxy.New(apiproxy.Options{Config: &rest.Config{
		Host:            server.URL,
		BearerToken:     "of cloudcore",
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	parts.Go(func() {
		if err := proxy.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var conns []net.Conn
	parts.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			acceptor, err := tunnel.NewAPIAcceptor(conn, shares.NewMemory())
			if err != nil {
				t.Error(err)
				return
			}
			parts.Go(func() { _ = acceptor.Serve(func(s net.Conn) { proxy.ServeStream("n1", s) }) })
		}
	})
	lost = func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			_ = c.Close()
		}
		conns = nil
	}
	device := apitunnel.New(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
	})
	parts.Go(func() { device.Run(ctx) })
	device.LinkUp(true)
	t.Cleanup(func() { // after the endpoint has ended
		stop()
		_ = l.Close()
		lost()
		parts.Wait()
		server.Close()
	})
	return newEnv(t, device), lost
}

// TestThroughTheCloud: what a pod sends and gets passes both halves, and kube-apiserver sees the pod's token alone.
func TestThroughTheCloud(t *testing.T) {
	next := make(chan struct{})
	large := `{"kind":"List","items":["` + strings.Repeat("x", 100<<10) + `"]}`
	var e *env
	e, lost := throughCloud(t, func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header["Authorization"]; len(got) != 1 || got[0] != "Bearer "+e.token {
			t.Errorf("Authorization = %q, want that of the pod alone", got)
		}
		if got := r.Header.Get("User-Agent"); !strings.HasPrefix(got, "kubectl") || !strings.Contains(got, "n1") {
			t.Errorf("User-Agent = %q, want the client's and the node", got)
		}
		switch {
		case r.URL.Query().Get("watch") != "":
			control := http.NewResponseController(w)
			_ = control.Flush()
			for range 2 {
				<-next
				_, _ = io.WriteString(w, "event\n")
				_ = control.Flush()
			}
			<-r.Context().Done()
		case r.Method == "POST":
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write(body)
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, large)
		}
	})
	if text := read(t, e.do(t, "GET", "/api/v1/pods", "")); text != large {
		t.Errorf("list of %d bytes, want %d", len(text), len(large))
	}
	if resp := e.do(t, "POST", "/api/v1/namespaces/shop/configmaps", "new"); resp.StatusCode != 201 ||
		read(t, resp) != "new" {
		t.Errorf("create: %d, want 201 and the object", resp.StatusCode)
	}
	watch := e.do(t, "GET", "/api/v1/pods?watch=1", "")
	lines := bufio.NewReader(watch.Body)
	for range 2 {
		next <- struct{}{}
		if line, err := lines.ReadString('\n'); err != nil || line != "event\n" {
			t.Fatalf("event %q, %v; want it at once", line, err)
		}
	}
	lost()
	if _, err := lines.ReadString('\n'); err == nil {
		t.Error("the watch goes on after its connection was lost, want its end")
	}
	wait.True(t, "requests to be answered again", func() bool {
		resp := e.do(t, "GET", "/api/v1/pods", "")
		return resp.StatusCode == 200 && read(t, resp) == large
	})
}

// TestUpgradeThroughTheCloud: exec and port-forward pass both halves.
func TestUpgradeThroughTheCloud(t *testing.T) {
	server := func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " +
			r.Header.Get("Upgrade") + "\r\n\r\n")
		_ = rw.Flush()
		line, err := rw.ReadString('\n')
		if err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(conn, "echo "+line)
	}
	e, _ := throughCloud(t, server)
	for _, protocol := range []string{"SPDY/3.1", "websocket"} {
		resp := e.do(t, "POST", "/api/v1/namespaces/shop/pods/a/exec", "", "Connection", "Upgrade", "Upgrade", protocol)
		conn, ok := resp.Body.(io.ReadWriteCloser)
		if resp.StatusCode != http.StatusSwitchingProtocols || !ok {
			t.Errorf("%s: %d, want 101", protocol, resp.StatusCode)
			continue
		}
		if _, err := io.WriteString(conn, "hello\n"); err != nil {
			t.Error(err)
		}
		if text, err := io.ReadAll(conn); err != nil || string(text) != "echo hello\n" {
			t.Errorf("%s: %q, %v; want the echo", protocol, text, err)
		}
	}
}
