package cloudprobe

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode"

	"k8s.io/client-go/kubernetes/fake"

	cloud "github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/edged/node/preflight"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// testCloud has cloudcore's two ports: the one for certificates as it is, and the TLS of the link.
type testCloud struct {
	authority        *cloud.Authority
	link, certs      string // ports
	linkTLS, certTLS *tls.Config
}

func startCloud(t testing.TB) *testCloud {
	t.Helper()
	client := fake.NewClientset()
	a, err := cloud.New(t.Context(), client.CoreV1().Secrets(cloud.Namespace),
		cloud.Options{Addresses: []string{"127.0.0.1", "cloud.example"}})
	if err != nil {
		t.Fatal(err)
	}
	c := &testCloud{authority: a, linkTLS: a.ServerTLS(tls.RequireAndVerifyClientCert)}
	c.certTLS = a.ServerTLS(tls.RequestClientCert)
	c.link = serve(t, c.linkTLS, http.NotFoundHandler())
	c.certs = serve(t, c.certTLS, a.Handler(client.CoreV1().Nodes()))
	return c
}

// serve serves HTTP, with TLS unless config is nil, and returns the port.
func serve(t testing.TB, config *tls.Config, handler http.Handler) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if config != nil {
		l = tls.NewListener(l, config)
	}
	s := &http.Server{Handler: handler, ErrorLog: log.New(io.Discard, "", 0)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-done
	})
	return port
}

// closedPort is one on which nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func (c *testCloud) options() Options {
	return Options{
		Host: "127.0.0.1", Port: c.link, CertPort: c.certs,
		Proxy:  func(*http.Request) (*url.URL, error) { return nil, nil },
		Getenv: func(string) string { return "" },
	}
}

func (c *testCloud) token(t *testing.T) *certs.Token {
	t.Helper()
	token, err := c.authority.NewToken("", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func lines(findings []preflight.Finding) string {
	var text strings.Builder
	for _, f := range findings {
		fmt.Fprintf(&text, "[%s] %s: %s\n", f.Level, f.Check, f.Text)
	}
	return text.String()
}

// TestProbe: each fault on the way to a cloud is found at the part that has it, with a remedy, and a way without a
// fault has none.
func TestProbe(t *testing.T) {
	c, other := startCloud(t), startCloud(t)
	through := func(proxy string) func(*http.Request) (*url.URL, error) {
		return func(*http.Request) (*url.URL, error) { return url.Parse(proxy) }
	}
	closed, refusing := closedPort(t), serve(t, nil, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusProxyAuthRequired)
	}))
	foreign := httptest.NewTLSServer(http.NotFoundHandler())
	defer foreign.Close()
	_, foreignPort, err := net.SplitHostPort(foreign.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	plain := serve(t, nil, http.NotFoundHandler())
	// It gives out one CA, and shows a certificate of another.
	intercepted := serve(t, other.certTLS, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(c.authority.CA().Raw)
	}))
	otherToken, token := other.token(t), c.token(t)
	for name, row := range map[string]struct {
		change func(*Options)
		worst  preflight.Level
		want   []string
	}{
		"well": {func(*Options) {}, preflight.OK, []string{
			"[ok] name: 127.0.0.1 is an address", "[ok] proxy: none: HTTPS_PROXY is not set",
			"[ok] port of the link: 127.0.0.1:" + c.link + " answers with TLS, and asks for the node's certificate",
			"[ok] port for certificates: 127.0.0.1:" + c.certs + " answers with TLS 1.3, and gives out",
			"[ok] certificate of the cloud: signed by the CA that the cloud gives out, and for 127.0.0.1. Whether",
			"[ok] clock: ",
		}},
		"well, with a token": {func(o *Options) { o.Token = token }, preflight.OK, []string{
			"[ok] certificate of the cloud: signed by the CA of the token, and for 127.0.0.1",
		}},
		"another cloud's token": {func(o *Options) { o.Token = otherToken }, preflight.Error, []string{
			"[error] certificate of the cloud: the CA of 127.0.0.1:" + c.certs + " is not the one of the token",
		}},
		"no such name": {func(o *Options) { o.Host = "nosuch.invalid" }, preflight.Error, []string{
			"[error] name: nosuch.invalid is not resolved: ", "[warning] clock: ",
		}},
		"another name": {func(o *Options) { o.Host = "localhost" }, preflight.Error, []string{
			"[ok] name: localhost is ", "[error] certificate of the cloud: the certificate at localhost:" + c.certs +
				" is for 127.0.0.1, cloud.example only",
		}},
		"nobody listens for certificates": {func(o *Options) { o.CertPort = closed }, preflight.Error, []string{
			"[ok] port of the link", "[error] port for certificates: 127.0.0.1:" + closed + " refuses connections",
		}},
		"no link": {func(o *Options) { o.Port = closed }, preflight.Error, []string{
			"[error] port of the link: 127.0.0.1:" + closed + " refuses connections", "[ok] port for certificates: ",
		}},
		"ports exchanged": {func(o *Options) { o.Port, o.CertPort = o.CertPort, o.Port }, preflight.Error, []string{
			"[error] port for certificates: 127.0.0.1:" + c.link + " takes only nodes that have a certificate",
		}},
		"no TLS": {func(o *Options) { o.Port, o.CertPort = plain, plain }, preflight.Error, []string{
			"[error] port of the link: what listens at 127.0.0.1:" + plain + " does not speak TLS",
			"[error] port for certificates: what listens at 127.0.0.1:" + plain + " does not speak TLS",
		}},
		"another server": {func(o *Options) {
			o.Port, o.CertPort = foreignPort, foreignPort
		}, preflight.Error, []string{
			"[warning] port of the link: 127.0.0.1:" + foreignPort + " answers with TLS 1.3, and does not ask",
			"[error] port for certificates: 127.0.0.1:" + foreignPort + " does not give out a CA (HTTP 404 Not Found)",
		}},
		"intercepted": {func(o *Options) { o.CertPort = intercepted }, preflight.Error, []string{
			"[error] certificate of the cloud: the certificate at 127.0.0.1:" + intercepted + " is not signed by the",
		}},
		"the link is another cloud's": {func(o *Options) { o.Port = other.link }, preflight.Error, []string{
			"[error] certificate of the cloud: the certificate at 127.0.0.1:" + other.link + " is not signed by the CA",
		}},
		"a dead proxy": {func(o *Options) {
			o.Host, o.Proxy = "nosuch.invalid", through("http://user:hunter2@127.0.0.1:"+closed)
		}, preflight.Error, []string{
			"[ok] name: nosuch.invalid is not resolved here (", "[ok] proxy: 127.0.0.1:" + closed + ", by HTTPS_PROXY",
			"[error] port of the link: the proxy 127.0.0.1:" + closed + " refuses connections",
			"[error] port for certificates: the proxy 127.0.0.1:" + closed + " refuses connections",
		}},
		"a proxy that wants a password": {func(o *Options) { o.Proxy = through("http://127.0.0.1:" + refusing) },
			preflight.Error, []string{
				"[error] port of the link: the proxy 127.0.0.1:" + refusing + " does not connect to 127.0.0.1:" +
					c.link + ": HTTP 407 Proxy Authentication Required",
			}},
		"a proxy": {func(o *Options) { o.Proxy = through(startProxy(t)) }, preflight.OK, []string{
			"[ok] port of the link", "[ok] port for certificates", "[ok] certificate of the cloud: ",
		}},
		"HTTPS_PROXY is no URL": {func(o *Options) {
			o.Getenv = func(string) string { return "user:hunter2@%zz" }
		}, preflight.Warning, []string{
			"[warning] proxy: none: HTTPS_PROXY is not the address of a proxy, and is ignored",
		}},
		"NO_PROXY": {func(o *Options) { o.Getenv = func(string) string { return "http://proxy.example:3128" } },
			preflight.OK, []string{"[ok] proxy: none: HTTPS_PROXY is set, but not used for 127.0.0.1: see NO_PROXY"}},
		"the clock is ahead": {func(o *Options) {
			o.Now = func() time.Time { return time.Now().Add(time.Hour) }
		}, preflight.Error, []string{" ahead of the cloud's, which says "}},
	} {
		t.Run(name, func(t *testing.T) {
			o := c.options()
			row.change(&o)
			findings := Check(Probe(t.Context(), o))
			got := lines(findings)
			if preflight.Worst(findings) != row.worst || strings.Contains(got, "hunter2") {
				t.Errorf("worst = %s, want %s, and no password:\n%s", preflight.Worst(findings), row.worst, got)
			}
			for _, want := range row.want {
				if !strings.Contains(got, want) {
					t.Errorf("want a line with %q:\n%s", want, got)
				}
			}
			for _, f := range findings {
				if (f.Level == preflight.OK) != (f.Remedy == "") {
					t.Errorf("%+v: want a remedy where something is wrong, and only there", f)
				}
			}
		})
	}
}

// startProxy starts an HTTP proxy that connects to any address, and returns its URL.
func startProxy(t *testing.T) string {
	t.Helper()
	return "http://127.0.0.1:" + serve(t, nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		far, err := net.Dial("tcp", r.Host)
		if err != nil {
			t.Error(err)
			return
		}
		defer far.Close()
		near, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer near.Close()
		_, _ = io.WriteString(near, "HTTP/1.1 200 OK\r\n\r\n")
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _ = io.Copy(far, near)
			_ = far.Close()
		})
		_, _ = io.Copy(near, far)
		_ = near.Close()
		wg.Wait()
	}))
}

// TestCheck: what cannot be had from a real server quickly.
func TestCheck(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	cert := func(from, until time.Duration) []*x509.Certificate {
		return []*x509.Certificate{{NotBefore: now.Add(from), NotAfter: now.Add(until)}}
	}
	day := 24 * time.Hour
	timeout := &net.OpError{Op: "dial", Err: context.DeadlineExceeded}
	for want, f := range map[string]*Facts{
		"[ok] clock: 2026-05-01T12:00:00Z, 2s from the cloud's; its certificate is valid until 2026-05-02T12:00:00Z": {
			Certs: Port{Chain: cert(-day, day), Date: now.Add(2 * time.Second)},
		},
		"[ok] clock: 2026-05-01T12:00:00Z; the cloud sends no time": {Certs: Port{Chain: cert(-day, day)}},
		"[error] clock: 2026-05-01T12:00:00Z, and the cloud's certificate is valid from 2026-05-02T12:00:00Z": {
			Link: Port{Chain: cert(day, 2*day)},
		},
		"[error] clock: 2026-05-01T12:00:00Z, as the cloud's, whose certificate is valid from 2026-04-29T12:00:00Z": {
			Certs: Port{Chain: cert(-2*day, -day), Date: now},
		},
		"[error] clock: 2026-05-01T12:00:00Z, 24h0m0s behind the cloud's, which says 2026-05-02T12:00:00Z": {
			Certs: Port{Chain: cert(-day, 2*day), Date: now.Add(day)},
		},
		"[error] port of the link: x:1 does not answer within 15s": {
			Link: Port{Address: "x:1", Tried: true, Through: true, Err: timeout},
		},
		"[error] port of the link: the proxy p:3128 does not answer within 15s": {
			Link: Port{Address: "x:1", Tried: true, Via: "p:3128", Err: timeout},
		},
		"[error] port of the link: x:1 (through the proxy p:3128) does not answer within 15s": {
			Link: Port{Address: "x:1", Tried: true, Via: "p:3128", Through: true, Err: timeout},
		},
		"[error] port for certificates: there is no way to x:2: network is unreachable": {
			Certs: Port{Address: "x:2", Tried: true, Through: true, Err: &net.OpError{Err: syscall.ENETUNREACH}},
		},
		"[warning] proxy: none for the link, and p:3128 for certificates": {Certs: Port{Via: "p:3128"}},
		"[ok] proxy: none: HTTP_PROXY is set, but only HTTPS_PROXY is used": {
			Proxies: Proxies{HTTP: "http://p:3128"},
		},
		"[error] name: x is not resolved: server misbehaving, asked 192.0.2.53:53": {
			NameErr: &net.DNSError{Err: "server misbehaving", Name: "x", Server: "192.0.2.53:53"},
		},
		"[error] port of the link: x:1 does not answer as cloudcore does: a b": {
			Link: Port{Address: "x:1", Tried: true, Through: true, Err: errors.New("a\x1b\nb")},
		},
	} {
		f.Host, f.Now = "x", now
		if got := lines(Check(f)); !strings.Contains(strings.ReplaceAll(got, "a  b", "a b"), want) {
			t.Errorf("Check, want a line with %q:\n%s", want, got)
		}
	}
}

// FuzzServer: whatever listens at the ports, or is the proxy, the findings are short and printable, and little is kept.
func FuzzServer(f *testing.F) {
	const ok = "HTTP/1.1 200 OK\r\n"
	f.Add(true, false, ok, "a: b\r\n", uint32(200_000), "\r\nx")
	f.Add(true, false, ok+"\r\n", "x", uint32(4<<20), "")
	f.Add(true, false, ok+"Date: "+strings.Repeat("\x1b", 100)+"\r\n\r\n", "", uint32(0), "")
	f.Add(true, false, "HTTP/1.1 302 Found\r\nLocation: https://127.0.0.1:1/\r\n\r\n", "", uint32(0), "")
	f.Add(true, false, "", "HTTP/1.1 103 Early Hints\r\na: b\r\n\r\n", uint32(50_000), ok+"\r\n")
	f.Add(false, false, "SSH-2.0-x\r\n", "\x1b[2J", uint32(100_000), "")
	f.Add(false, true, ok, "a: b\r\n", uint32(200_000), "\r\n")
	f.Add(false, true, "HTTP/1.1 407 ", "\x1b[2J", uint32(100_000), "\r\n\r\n")
	c := startCloud(f)
	f.Fuzz(func(t *testing.T, secure, asProxy bool, head, part string, times uint32, tail string) {
		const most = 4 << 20
		text := head + strings.Repeat(part, min(int(times), most/max(len(part), 1))) + tail
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		at := l.Addr().String()
		if secure {
			l = tls.NewListener(l, c.certTLS)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				wg.Go(func() {
					defer conn.Close()
					if secure || asProxy {
						_, _ = http.ReadRequest(bufio.NewReader(conn))
					}
					_, _ = io.WriteString(conn, text)
				})
			}
		})
		defer wg.Wait()
		defer l.Close()
		o := c.options()
		_, o.Port, _ = net.SplitHostPort(at)
		o.CertPort = o.Port
		if asProxy {
			o.Proxy = func(*http.Request) (*url.URL, error) { return url.Parse("http://" + at) }
		}
		var findings []preflight.Finding
		// What is counted has both ends of four TLS connections.
		membound.Check(t, 16<<20, func() { findings = Check(Probe(t.Context(), o)) })
		if preflight.Worst(findings) != preflight.Error {
			t.Errorf("no error, want one:\n%s", lines(findings))
		}
		for _, f := range findings {
			if len(f.Text) > 1<<10 || strings.ContainsFunc(f.Text, unicode.IsControl) {
				t.Errorf("a finding has %d bytes, %.300q; want one line of at most 1 KiB", len(f.Text), f.Text)
			}
		}
	})
}
