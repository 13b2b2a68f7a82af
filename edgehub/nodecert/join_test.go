package nodecert_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	cloud "github.com/edgecore-io/edgecore/cloud/certificates"
	"github.com/edgecore-io/edgecore/edgehub/nodecert"
	"github.com/edgecore-io/edgecore/pkg/certs"
)

func wantProblem(t *testing.T, err error, reason nodecert.Reason, texts ...string) {
	t.Helper()
	if got := nodecert.ReasonOf(err); err == nil || got != reason {
		t.Errorf("reason %q (%v), want %s", got, err, reason)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v; want %q in it", reason, err, text)
		}
	}
}

func TestJoin(t *testing.T) {
	c := newCloud(t, newClock(), nil)
	opts := c.options(t, c.token(t, ""))
	k := nodecert.New(opts)
	wantProblem(t, k.Check(), nodecert.NoToken, "has no certificate for the cloud yet", "cloudcore gettoken",
		"edgecore join")
	if err := k.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	id, err := opts.Files.Load()
	if err != nil {
		t.Fatal(err)
	}
	if err := certs.CheckNode(id.Cert(), "edge1", false); err != nil {
		t.Error(err)
	}
	for _, name := range []string{opts.Files.CA, opts.Files.Cert, opts.Files.Key} {
		if info, err := os.Stat(name); err != nil {
			t.Error(err)
		} else if info.Mode() != 0o600 {
			t.Errorf("%s: mode %v, want %v", name, info.Mode(), os.FileMode(0o600))
		}
	}
	// A second time nobody is asked.
	opts.Server, opts.Token = "https://127.0.0.1:1", nil
	if err := nodecert.New(opts).Ensure(t.Context()); err != nil {
		t.Errorf("again: %v", err)
	}
	// What it gives the hub is good for the hub.
	peer := handshake(t, c.ServerTLS(tls.RequireAndVerifyClientCert), id.ClientTLS(c.clock.now))
	if got := peer.PeerCertificates[0].Subject.CommonName; got != "system:node:edge1" {
		t.Errorf("name in the certificate that the hub sees = %q, want %q", got, "system:node:edge1")
	}
}

// handshake lets a client in and returns what the server knows of it.
func handshake(t *testing.T, server, client *tls.Config) tls.ConnectionState {
	t.Helper()
	a, b := net.Pipe()
	client = client.Clone()
	client.ServerName = "cloud.example"
	errs := make(chan error)
	go func() { errs <- tls.Client(a, client).HandshakeContext(t.Context()) }()
	s := tls.Server(b, server)
	err := s.HandshakeContext(t.Context())
	b.Close()
	if clientErr := <-errs; err != nil || clientErr != nil {
		t.Fatalf("errors %v and %v, want none", err, clientErr)
	}
	a.Close()
	return s.ConnectionState()
}

// TestJoinFails: each failure is distinguished from the others and says what to do, and no file is written.
func TestJoinFails(t *testing.T) {
	clk := newClock()
	c := newCloud(t, clk, nil)
	other := newCloud(t, clk, nil)
	late := newCloud(t, clk, func(o *cloud.Options) {
		now := o.Now
		o.Now = func() time.Time { return now().Add(30 * time.Hour) }
	})
	taken := newCloud(t, clk, func(o *cloud.Options) { o.ProtectTaken = true }, "edge1")
	busy := newCloud(t, clk, func(o *cloud.Options) { o.RequestsPerSecond, o.Burst = 0.001, 1 })
	crowded := newCloud(t, clk, func(o *cloud.Options) {
		for i := range 199 {
			o.Addresses = append(o.Addresses, fmt.Sprintf("n%d.example", i))
		}
	})
	forged, err := certs.NewToken(c.CA().Raw, strings.SplitN(other.token(t, ""), ".", 2)[1])
	if err != nil {
		t.Fatal(err)
	}
	spent, err := c.NewToken("", -time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	shifted := func(d time.Duration) func(*nodecert.Options) {
		return func(o *nodecert.Options) { o.Now = func() time.Time { return clk.now().Add(d) } }
	}
	server := func(s string) func(*nodecert.Options) { return func(o *nodecert.Options) { o.Server = s } }
	for name, tc := range map[string]struct {
		token  string
		cloud  *testCloud
		change func(*nodecert.Options)
		reason nodecert.Reason
		texts  []string
	}{
		"no token":     {"", c, nil, nodecert.NoToken, []string{"cloudcore gettoken"}},
		"half a token": {c.token(t, "")[:90], c, nil, nodecert.BadToken, []string{"copy the whole line"}},
		"wrong token": {
			forged.String(), c, nil, nodecert.BadToken, []string{
				"does not accept the token", "signature is invalid", "get a new one (cloudcore gettoken",
			},
		},
		"another cloud's": {
			other.token(t, ""), c, nil, nodecert.WrongCA, []string{"does not match the token", "Get a new token",
				"nothing was sent"},
		},
		"another node's": {
			c.token(t, "edge2"), c, nil, nodecert.WrongNode,
			[]string{`the token is for node "edge2", and this device is "edge1"`, "--edgenode-name edge2"},
		},
		"spent": {
			spent.String(), c, nil, nodecert.TokenExpired, []string{
				"the token expired at 2026-11-21T11:00:00Z, 1h0m0s ago", "get a new one",
			},
		},
		"clock behind": {
			late.token(t, ""), late, nil, nodecert.Clock, []string{
				"says 2026-11-21T12:00:00Z, 30h0m0s behind the cloud's, which says 2026-11-22T18:00:00Z", "timedatectl",
			},
		},
		"clock in 1970": {c.token(t, ""), c, func(o *nodecert.Options) {
			o.Now = func() time.Time { return time.Unix(60, 0) }
		}, nodecert.Clock, []string{"1970-01-01T00:01:00Z", "behind", "date -s"}},
		"clock ahead": {
			c.token(t, ""), c, shifted(time.Hour), nodecert.Clock, []string{"1h0m0s ahead of the cloud's"},
		},
		"other host name": {
			c.token(t, ""), c, server("https://localhost:" + portOf(t, c.address)), nodecert.WrongHost,
			[]string{"for 127.0.0.1, cloud.example only", "dnsNames"},
		},
		"many host names": {crowded.token(t, ""), crowded, server("https://localhost:" + portOf(t, crowded.address)),
			nodecert.WrongHost, []string{"for 127.0.0.1, cloud.example, ", " and 191 more only"}},
		"nobody there": {
			c.token(t, ""), c, server("https://127.0.0.1:1"), nodecert.Unreachable,
			[]string{"refuses connections", "that cloudcore runs"},
		},
		"no such name": {c.token(t, ""), c, server("https://nosuch.invalid:10002"), nodecert.Unreachable,
			[]string{"nosuch.invalid cannot be looked up", "DNS"}},
		"no address": {
			c.token(t, ""), c, server("https://[:1"), nodecert.Unreachable,
			[]string{"is invalid: want https://HOST:PORT"},
		},
		"name taken": {
			taken.token(t, ""), taken, nil, nodecert.NameTaken,
			[]string{"the name edge1 is taken", "gettoken --node edge1"},
		},
		"too many requests": {busy.token(t, ""), busy, nil, nodecert.Busy, []string{"try again in a minute"}},
		"no permission": {c.token(t, ""), c, func(o *nodecert.Options) {
			o.Files = certs.Files{CA: "/proc/x/a", Cert: "/proc/x/b", Key: "/proc/x/c"}
		},
			nodecert.BadFiles, []string{"cannot be written", "make room"}},
		"token unreadable": {"", c, func(o *nodecert.Options) {
			o.Token = func() (string, error) { return "", errors.New("no disk") }
		},
			nodecert.BadToken, []string{"the token cannot be read: no disk"}},
	} {
		t.Run(name, func(t *testing.T) {
			opts := tc.cloud.options(t, tc.token)
			if tc.change != nil {
				tc.change(&opts)
			}
			wantProblem(t, nodecert.New(opts).Ensure(t.Context()), tc.reason, tc.texts...)
			for _, name := range []string{opts.Files.CA, opts.Files.Cert, opts.Files.Key} {
				if _, err := os.Stat(name); err == nil {
					t.Errorf("Stat(%s) = nil, want it not written", name)
				}
			}
		})
	}
}

func portOf(t *testing.T, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// TestSilentCloud: someone takes the connection and says nothing.
func TestSilentCloud(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	c := newCloud(t, newClock(), nil)
	opts := c.options(t, c.token(t, ""))
	opts.Server = "https://" + listener.Addr().String()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	wantProblem(t, nodecert.New(opts).Ensure(ctx), nodecert.Unreachable, "does not answer in time", "firewalls")
}

// TestStrangers: what answers is something else, or a cloud that does what it should not.
func TestStrangers(t *testing.T) {
	clk := newClock()
	c, other := newCloud(t, clk, nil), newCloud(t, clk, nil)
	text := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status); io.WriteString(w, body) }
	}
	// issued answers with a certificate of the wrong kind, for the request's own key or for another.
	issued := func(node string, a *testCloud, ownKey bool) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			if !ownKey {
				key, err := certs.NewKey()
				if err != nil {
					t.Error(err)
				}
				if body, err = certs.NewRequest("edge1", key); err != nil {
					t.Error(err)
				}
			}
			req, err := certs.ParseRequest(body)
			if err != nil {
				t.Error(err)
			}
			der, err := a.SignNode(node, req)
			if err != nil {
				t.Error(err)
			}
			w.Write(der)
		}
	}
	for name, tc := range map[string]struct {
		path    string
		handler http.HandlerFunc
		reason  nodecert.Reason
		text    string
	}{
		"a web server": {
			"/ca.crt", text(404, "no"), nodecert.Refused,
			"does not have its CA (404): that is not the cloud's port for certificates",
		},
		"a web page": {
			"/ca.crt", text(200, "<html>"), nodecert.Refused, "does not answer with a CA certificate",
		},
		"a flood": {
			"/ca.crt", text(200, strings.Repeat("x", 2<<20)), nodecert.Refused, "more than 1024 KiB",
		},
		"a cloud that is ill": {
			"/edge.crt", text(500, "failed to sign certs"), nodecert.Busy,
			"cannot give a certificate for this device now (500: failed to sign certs): look at cloudcore's log",
		},
		"a redirect": {
			"/edge.crt", text(302, ""), nodecert.Refused, "refuses a certificate for this device (302",
		},
		"KubeEdge, no token": {
			"/edge.crt", text(401, "token validation failure, token cannot be split"), nodecert.BadToken,
			"token cannot be split): get a new one",
		},
		"KubeEdge, old token": {
			"/edge.crt", text(401, "token validation failure, err: token has invalid claims: token is expired"),
			nodecert.TokenExpired, "get a new token",
		},
		"no certificate": {"/edge.crt", text(200, "yes"), nodecert.Refused, "is not what was asked for"},
		"another's name": {
			"/edge.crt", issued("edge2", c, true), nodecert.Refused, `is that of node "edge2"`,
		},
		"another's key": {"/edge.crt", issued("edge1", c, false), nodecert.Refused, "it is for another key"},
		"another CA's":  {"/edge.crt", issued("edge1", other, true), nodecert.Refused, "unknown authority"},
		"a CA that is not his": {"/ca.crt", func(w http.ResponseWriter, _ *http.Request) { w.Write(other.CA().Raw) },
			nodecert.WrongCA, "does not match the token"},
	} {
		t.Run(name, func(t *testing.T) {
			o := &oldCloud{
				t:   t,
				ca:  c.Authority,
				now: clk.now,
				answer: func(w http.ResponseWriter, r *http.Request) bool {
					if r.URL.Path != tc.path {
						return false
					}
					tc.handler(w, r)
					return true
				},
			}
			opts := c.options(t, c.token(t, ""))
			opts.Server = o.start(t)
			wantProblem(t, nodecert.New(opts).Ensure(t.Context()), tc.reason, tc.text)
			if _, err := os.Stat(opts.Files.Key); err == nil {
				t.Errorf("Stat(%s) = nil, want no files written", opts.Files.Key)
			}
			for _, r := range o.all() {
				if tc.reason == nodecert.WrongCA && r.auth != "" {
					t.Errorf("authorization sent to a wrong CA = %q, want none", r.auth)
				}
			}
		})
	}
	t.Run("who has the CA's certificate but not its key", func(t *testing.T) {
		thief := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Date", clk.now().UTC().Format(http.TimeFormat))
			if got := r.Header.Get("Authorization"); got != "" {
				t.Errorf("authorization sent without the CA's key = %q, want none", got)
			}
			w.Write(c.CA().Raw)
		}))
		thief.TLS = serverTLS(t, other.Authority)
		thief.Config.ErrorLog = quiet()
		thief.StartTLS()
		defer thief.Close()
		opts := c.options(t, c.token(t, ""))
		opts.Server = thief.URL
		wantProblem(t, nodecert.New(opts).Ensure(t.Context()), nodecert.WrongCA,
			"is not the cloud that this device trusts")
	})
	t.Run("no TLS", func(t *testing.T) {
		plain := httptest.NewServer(text(200, ""))
		defer plain.Close()
		opts := c.options(t, c.token(t, ""))
		opts.Server = strings.Replace(plain.URL, "http:", "https:", 1)
		wantProblem(t, nodecert.New(opts).Ensure(t.Context()), nodecert.Refused, "does not speak TLS")
	})
}

// TestWithKubeEdgesCloud: what goes over the wire is what KubeEdge's edge sends, at the first time and at a
// renewal.
func TestWithKubeEdgesCloud(t *testing.T) {
	clk := newClock()
	c := newCloud(t, clk, shortLived)
	o := &oldCloud{t: t, ca: c.Authority, now: clk.now}
	token := c.token(t, "")
	opts := c.options(t, token)
	opts.Server = o.start(t)
	k := nodecert.New(opts)
	if taken, err := k.NameTaken(t.Context(), token); taken || err != nil { // it does not have that path
		t.Errorf("taken %v, %v", taken, err)
	}
	if err := k.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	first, err := opts.Files.Load()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	k.Rotate(ctx, cancel)
	second, err := opts.Files.Load()
	if err != nil {
		t.Fatal(err)
	}
	if second.Cert().Equal(first.Cert()) || second.Key.Equal(first.Key) || !second.CAs[0].Equal(c.CA()) {
		t.Errorf("same certificate %v, same key %v, CA %v; want a new certificate with a new key, and CA %v",
			second.Cert().Equal(first.Cert()), second.Key.Equal(first.Key), second.CAs[0].SerialNumber,
			c.CA().SerialNumber)
	}
	type wire struct{ Method, Path, Auth, Node, Usages, Peer string }
	bearer := "Bearer " + strings.SplitN(token, ".", 2)[1]
	want := []wire{
		{"GET", "/ca.crt", "", "", "", ""},
		{"GET", "/node/edge1", bearer, "", "", ""},
		{"GET", "/ca.crt", "", "", "", ""},
		{"GET", "/edge.crt", bearer, "edge1", "", ""},
		{"GET", "/edge.crt", "", "edge1", "", "CN=system:node:edge1,O=system:nodes"},
	}
	var got []wire
	for _, r := range o.all() {
		got = append(got, wire{r.method, r.path, r.auth, r.node, r.usages, r.peer})
		if r.path != "/edge.crt" {
			continue
		}
		if req, err := certs.ParseRequest(r.csr); err != nil {
			t.Errorf("ParseRequest = %v, want no error", err)
		} else if got, want := req.Subject.String(), "CN=system:node:edge1,O=system:nodes"; got != want {
			t.Errorf("subject of the request = %q, want %q", got, want)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNameTaken(t *testing.T) {
	clk := newClock()
	// It tells the truth only to those who have a token.
	c := newCloud(t, clk, func(o *cloud.Options) { o.ProtectTaken = true }, "edge1")
	token := c.token(t, "")
	opts := c.options(t, token)
	if taken, err := nodecert.New(opts).NameTaken(t.Context(), token); !taken || err != nil {
		t.Errorf("taken %v, %v", taken, err)
	}
	opts.Node = "edge2"
	if taken, err := nodecert.New(opts).NameTaken(t.Context(), token); taken || err != nil {
		t.Errorf("free: taken %v, %v", taken, err)
	}
	_, err := nodecert.New(opts).NameTaken(t.Context(), "x")
	wantProblem(t, err, nodecert.BadToken)
	o := &oldCloud{t: t, ca: c.Authority, now: clk.now, answer: func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/ca.crt" {
			http.Error(w, "no API server", http.StatusInternalServerError)
			return true
		}
		return false
	}}
	opts.Server = o.start(t)
	_, err = nodecert.New(opts).NameTaken(t.Context(), token)
	wantProblem(t, err, nodecert.Busy, "no API server")
}

// TestPortOfTheLink: a server that wants a certificate before it answers is the link, say, and not the port for
// certificates.
func TestPortOfTheLink(t *testing.T) {
	c := newCloud(t, newClock(), nil)
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Listener = tls.NewListener(server.Listener, c.ServerTLS(tls.RequireAndVerifyClientCert))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	defer server.Close()
	opts := c.options(t, c.token(t, ""))
	opts.Server = "https://" + server.Listener.Addr().String()
	wantProblem(t, nodecert.New(opts).Ensure(t.Context()), nodecert.Refused, "breaks off the handshake (",
		"or that is not the cloud's port")
}

// TestProxy: the way to the cloud may lead through an HTTP proxy, which sees nothing of it.
func TestProxy(t *testing.T) {
	c := newCloud(t, newClock(), nil)
	var asked []string
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.Host)
		to, err := net.Dial("tcp", c.address)
		if err != nil {
			t.Error(err)
			return
		}
		defer to.Close()
		from, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer from.Close()
		if _, err := io.WriteString(from, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
			t.Error(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			io.Copy(to, from)
			to.Close()
		}()
		io.Copy(from, to)
		from.Close()
		<-done
	}))
	defer proxy.Close()
	opts := c.options(t, c.token(t, ""))
	opts.Server = "https://cloud.example:10002"
	opts.Proxy = func(*http.Request) (*url.URL, error) { return url.Parse(proxy.URL) }
	if err := nodecert.New(opts).Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := []string{"CONNECT cloud.example:10002", "CONNECT cloud.example:10002"}; !cmp.Equal(asked, want) {
		t.Errorf("requests to the proxy = %v, want %v", asked, want)
	}
}

// TestProxyRefuses: the problem names the proxy that refuses, its status and the remedy, and no password.
func TestProxyRefuses(t *testing.T) {
	c := newCloud(t, newClock(), nil)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
	}))
	defer proxy.Close()
	host := proxy.Listener.Addr().String()
	opts := c.options(t, c.token(t, ""))
	opts.Proxy = func(*http.Request) (*url.URL, error) { return url.Parse("http://user:hunter2@" + host) }
	err := nodecert.New(opts).Ensure(t.Context())
	wantProblem(t, err, nodecert.Unreachable, "the proxy "+host+" does not connect to the cloud at")
	wantProblem(t, err, nodecert.Unreachable, "(HTTP 403 Forbidden): have the proxy allow CONNECT")
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%v shows the password", err)
	}
}

// expiring is a context whose deadline is over as soon as it is told so.
type expiring struct {
	context.Context
	done chan struct{}
}

func (e expiring) Done() <-chan struct{} { return e.done }

func (e expiring) Err() error {
	select {
	case <-e.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// TestDeadProxy: the problem names the proxy that does not answer, and what to change: the cloud may be well. Where the
// proxy has done its part, the problem is the cloud's, and names the way all the same.
func TestDeadProxy(t *testing.T) {
	c := newCloud(t, newClock(), nil)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	answers := make(chan func(net.Conn), 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := proxy.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				(<-answers)(conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = proxy.Close()
		wg.Wait()
	})
	ctx := expiring{t.Context(), make(chan struct{})}
	at, dead := proxy.Addr().String(), closed.Addr().String()
	wait := func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) } // until the other end closes it
	for _, row := range []struct {
		name, proxy string
		ctx         context.Context
		answer      func(net.Conn)
		want        string
	}{
		{"nobody listens", "http://" + dead, t.Context(), nil, "the proxy " + dead +
			", on the way to the cloud at https://cloud.example:10002, refuses connections: check HTTPS_PROXY"},
		{"SOCKS", "socks5://" + dead, t.Context(), nil, "the proxy " + dead + ", on the way to the cloud at " +
			"https://cloud.example:10002, refuses connections: check HTTPS_PROXY"},
		{"no such name", "http://nosuch.invalid:3128", t.Context(), nil, "the proxy nosuch.invalid:3128, on the way " +
			"to the cloud at https://cloud.example:10002, cannot be looked up ("},
		{"silent", "http://" + at, ctx, func(conn net.Conn) {
			close(ctx.done)
			wait(conn)
		}, "the proxy " + at + ", on the way to the cloud at https://cloud.example:10002, does not answer in time: "},
		{"closes", "http://" + at, t.Context(), func(net.Conn) {}, "the proxy " + at +
			" does not connect to the cloud at https://cloud.example:10002 ("},
		{"not a proxy", "http://" + at, t.Context(), func(conn net.Conn) {
			_, _ = io.WriteString(conn, "SSH-2.0-x\r\n")
			wait(conn)
		}, "the proxy " + at + " does not connect to the cloud at https://cloud.example:10002 ("},
		{"reaches something else", "http://" + at, t.Context(), func(conn net.Conn) {
			_, _ = http.ReadRequest(bufio.NewReader(conn))
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
			_, _ = io.ReadFull(conn, make([]byte, 16)) // the handshake's first bytes
			_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n")
			wait(conn)
		}, "(through the proxy " + at + ")"},
	} {
		opts := c.options(t, c.token(t, ""))
		opts.Server = "https://cloud.example:10002"
		opts.Proxy = func(*http.Request) (*url.URL, error) {
			u, err := url.Parse(row.proxy)
			if err == nil {
				u.User = url.UserPassword("user", "hunter2")
			}
			return u, err
		}
		if row.answer != nil {
			answers <- row.answer
		}
		err := nodecert.New(opts).Ensure(row.ctx)
		if err == nil || !strings.Contains(err.Error(), row.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %q, and no password", row.name, err, row.want)
		}
	}
}

func TestTokenFrom(t *testing.T) {
	file := t.TempDir() + "/token"
	from := nodecert.TokenFrom(file, "configured")
	if got, err := from(); got != "configured" || err != nil {
		t.Errorf("no file: %q, %v", got, err)
	}
	if err := os.WriteFile(file, []byte("token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := from(); got != "token" || err != nil {
		t.Errorf("a file: %q, %v", got, err)
	}
	if _, err := nodecert.TokenFrom(t.TempDir(), "configured")(); err == nil {
		t.Error("TokenFrom with a folder = nil, want an error")
	}
}
