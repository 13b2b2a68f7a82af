package edgehub

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// reason waits until the device says why there is no link.
func (e *edge) reason(want string) string {
	e.t.Helper()
	var text string
	wait.Until(e.t, "the reason why there is no link", func() error {
		if text = e.hub.State().Reason; !strings.Contains(text, want) {
			return fmt.Errorf("the reason is %q, want %q in it", text, want)
		}
		return nil
	})
	return text
}

// TestReasonsOfRealDials: what real failures look like, and that each passes when its cause does.
func TestReasonsOfRealDials(t *testing.T) {
	ca := wiretest.NewCA(t)
	u := newUpstream(t, ca)
	const nobody = "127.0.0.1:1"
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	other := newUpstream(t, wiretest.NewCA(t))
	named := newUpstream(t, ca, "cloud.example")
	for name, c := range map[string]struct {
		server string
		spoil  func(e wiretest.Files)
		want   string
	}{
		"nobody listens": {nobody, nil, "nothing listens at " + nobody},
		"no name":        {"cloud.invalid:10000", nil, "the name cloud.invalid is not resolved"},
		"another CA":     {other.addr, nil, "has no certificate of the CA in"},
		"another name":   {named.addr, nil, "the cloud's certificate is not for 127.0.0.1 (it is for cloud.example)"},
		"no TLS":         {plain.Listener.Addr().String(), nil, "websocket at"},
		"expired": {u.addr, func(f wiretest.Files) {
			ca.Write(t, filepath.Dir(f.CA), ca.Node(t, "edge-1", time.Now().Add(-time.Minute)))
		}, "the node's certificate expired at"},
		"no certificate": {u.addr, func(f wiretest.Files) {
			_ = os.Remove(f.Cert)
		}, "this node has not joined a cloud"},
		"broken key": {u.addr, func(f wiretest.Files) {
			_ = os.WriteFile(f.Key, []byte("x"), 0o600)
		}, "are invalid"},
		"broken CA": {u.addr, func(f wiretest.Files) {
			_ = os.WriteFile(f.CA, []byte("x"), 0o600)
		}, "rootCA.crt: holds no PEM block of a certificate"},
		"a foreign node CA": {u.addr, func(f wiretest.Files) { foreign(t, f) }, "rejects the node's certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			var registry *health.Registry
			e := startEdge(t, ca, c.server, with{
				options: func(o *Options) {
					registry = o.Health
					if c.spoil != nil {
						c.spoil(wiretest.Files{
							CA: o.Config.TLSCAFile, Cert: o.Config.TLSCertFile, Key: o.Config.TLSPrivateKeyFile,
						})
					}
				},
			})
			text := e.reason(c.want)
			if expired := strings.Contains(text, "expired"); expired != has(registry, health.CertificateExpired) {
				t.Errorf("%q: the condition CertificateExpired is %v, want %v", text, !expired, expired)
			}
			if c.spoil == nil {
				return
			}
			ca.Write(t, filepath.Dir(e.files.CA), ca.Node(t, "edge-1", time.Now().Add(time.Hour)))
			e.told(1)
			if has(registry, health.CertificateExpired) {
				t.Errorf("conditions = %v, want no %s after its cause", registry.Snapshot(), health.CertificateExpired)
			}
		})
	}
}

func has(r *health.Registry, code health.Code) bool {
	for _, c := range r.Snapshot() {
		if c.Code == code {
			return true
		}
	}
	return false
}

// foreign gives a node a certificate of a CA that the cloud does not know.
func foreign(t *testing.T, f wiretest.Files) {
	stranger := wiretest.NewCA(t)
	dir := t.TempDir()
	from := stranger.Write(t, dir, stranger.Node(t, "edge-1", time.Now().Add(time.Hour)))
	for a, b := range map[string]string{from.Cert: f.Cert, from.Key: f.Key} {
		data, err := os.ReadFile(a)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(b, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// connectProxy is an HTTP proxy that knows CONNECT only.
func connectProxy(t *testing.T, password string) (*url.URL, func() int) {
	t.Helper()
	var mu sync.Mutex
	n := 0
	var wg sync.WaitGroup
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect || password != "" && r.Header.Get("Proxy-Authorization") == "" {
			http.Error(w, "no", http.StatusProxyAuthRequired)
			return
		}
		far, err := net.Dial("tcp", r.Host)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		near, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = near.Write([]byte("HTTP/1.1 200 OK\r\n\r\n"))
		mu.Lock()
		n++
		mu.Unlock()
		pipe := func(a, b net.Conn) {
			buf := make([]byte, 4096)
			for {
				k, err := a.Read(buf)
				if _, werr := b.Write(buf[:k]); err != nil || werr != nil {
					_ = a.Close()
					_ = b.Close()
					return
				}
			}
		}
		wg.Go(func() { pipe(near, far) })
		wg.Go(func() { pipe(far, near) })
	}))
	t.Cleanup(func() {
		s.Close()
		wg.Wait()
	})
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	if password != "" {
		u.User = url.UserPassword("user", password)
	}
	return u, func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

// TestProxy: the link goes through an HTTP proxy, with a password that no reason shows.
func TestProxy(t *testing.T) {
	u := newUpstream(t, wiretest.NewCA(t))
	u.answer = echo
	for _, password := range []string{"", "hunter2"} {
		proxy, connects := connectProxy(t, password)
		asked := make(chan *http.Request, 100)
		through := func(p *url.URL) with {
			return with{options: func(o *Options) {
				o.Proxy = func(r *http.Request) (*url.URL, error) {
					asked <- r
					return p, nil
				}
			}}
		}
		e := startEdge(t, u.ca, u.addr, through(proxy))
		e.told(1)
		if answer, err := e.ask(t.Context(), request("default/secret/a")); err != nil {
			t.Error(err)
		} else if got := string(answer.ContentData()); got != "default/secret/a" {
			t.Errorf("answer = %q, want %q", got, "default/secret/a")
		}
		if r := <-asked; connects() != 1 || r.URL.Scheme != "https" || r.URL.Host != u.addr {
			t.Errorf("%d connections, proxy chosen for %s; want 1 and https://%s", connects(), r.URL, u.addr)
		}
		if password == "" {
			continue
		}
		wrong := *proxy
		wrong.User = nil
		text := startEdge(t, u.ca, u.addr, through(&wrong)).reason("the proxy " + proxy.Host)
		if strings.Contains(text, password) || !strings.Contains(text, "Proxy Authentication Required") {
			t.Errorf("reason %q, want %q without the password", text, "Proxy Authentication Required")
		}
	}
}

// ours is a cloud of ours: it agrees on features.
func ours(t *testing.T, ca *wiretest.CA, f wire.Features) (addr string, conns chan wire.Conn) {
	t.Helper()
	conns = make(chan wire.Conn, 10)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := wire.AcceptWebSocket(w, r, wire.AcceptOptions{Features: f})
		if err != nil {
			t.Error(err)
			return
		}
		conns <- c
	}))
	s.Listener = wire.CountBytes(s.Listener)
	s.TLS = ca.ServerTLS(t)
	s.TLS.MinVersion = tls.VersionTLS13
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), conns
}

// TestOurCloud: with the lease agreed there are pings and no keepalives, and an idle heartbeat costs few bytes.
func TestOurCloud(t *testing.T) {
	ca := wiretest.NewCA(t)
	addr, conns := ours(t, ca, wire.AllFeatures())
	e := startEdge(t, ca, addr, with{settings: func(s *settings) {
		s.heartbeat, s.backoffMin, s.backoffMax = 50*time.Millisecond, time.Hour, time.Hour
	}})
	if link := e.told(1); link.Features != wire.AllFeatures() {
		t.Errorf("told %+v, want features %+v", link, wire.AllFeatures())
	}
	far := <-conns
	ended := make(chan error, 1)
	messages := 0
	go func() {
		for {
			if _, err := far.Read(); err != nil {
				ended <- err
				return
			}
			messages++
		}
	}()
	pings := func(n int64) wire.Stats {
		wait.True(t, fmt.Sprintf("%d pings", n), func() bool { return far.Stats().Pings >= n })
		return far.Stats()
	}
	before := pings(2)
	after := pings(before.Pings + 4)
	if cost := after.BytesReceived + after.BytesSent - before.BytesReceived - before.BytesSent; cost >
		64*(after.Pings-before.Pings+1) {
		t.Errorf("%d heartbeats cost %d bytes, want at most %d", after.Pings-before.Pings, cost,
			64*(after.Pings-before.Pings+1))
	}
	_ = far.Close(wire.CloseReplaced, "another connection of this node came")
	if err := <-ended; err == nil || messages != 0 {
		t.Errorf("%v, %d messages; want none but pings", err, messages)
	}
	e.reason("another connection of this node came (code 4001)")
	e.hub.Reconnect()
	e.told(3)
}
