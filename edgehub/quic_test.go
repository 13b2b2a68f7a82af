package edgehub

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/apis/edgecore/v1alpha2"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/shares"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// overQUIC configures QUIC beside the WebSocket.
func overQUIC(server string) func(*Options) {
	return func(o *Options) {
		o.Config.Quic = v1alpha2.Transport{Enable: true, Server: server, HandshakeTimeout: 30, WriteDeadline: 15}
		o.Config.WebSocket.Enable = false
	}
}

// quicCloud is a cloud of ours that answers each request.
func quicCloud(t *testing.T, ca *wiretest.CA, refuse error) (addr string, conns chan wire.Conn, l *wire.QUICListener) {
	t.Helper()
	features := wire.AllFeatures()
	features.Tunnel = true
	l, err := wire.ListenQUIC("127.0.0.1:0", ca.ServerTLS(t), wire.Limits{}, shares.NewMemory(),
		func(wire.Caller) (wire.AcceptOptions, error) {
			return wire.AcceptOptions{Features: features}, refuse
		})
	if err != nil {
		t.Fatal(err)
	}
	conns = make(chan wire.Conn, 10)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, header, _, err := l.Accept(context.Background())
			if err != nil {
				return
			}
			if header.Get(wire.HeaderNodeID) != "edge-1" || header.Get(wire.HeaderUse) != wire.UseMessages {
				t.Errorf("header %v, want node edge-1 and use %s", header, wire.UseMessages)
			}
			conns <- c
			go func() {
				for {
					m, err := c.Read()
					if err != nil {
						return
					}
					if !m.IsResponse() {
						_ = c.Write(echo(m))
					}
				}
			}()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
		for len(conns) > 0 {
			_ = (<-conns).Close(wire.CloseNormal, "")
		}
	})
	return l.Addr().String(), conns, l
}

// TestQUICFirst: QUIC is used where it works, a WebSocket where it does not, and that is said.
func TestQUICFirst(t *testing.T) {
	ca := wiretest.NewCA(t)
	u := newUpstream(t, ca)
	u.answer = echo
	addr, conns, _ := quicCloud(t, ca, nil)
	proxy := wiretest.NewUDPProxy(t, addr)
	var registry *health.Registry
	e := startEdge(t, ca, u.addr, with{
		options: func(o *Options) {
			overQUIC(proxy.Addr())(o)
			registry = o.Health
		},
		settings: func(s *settings) { s.targets[0].limits.ReadTimeout = 8 * time.Second },
	})
	want := wire.Features{Inventory: true, Lease: true, Report: true, Batch: true}
	if link := e.told(1); link.Features != want {
		t.Errorf("told %+v, want the features %s", link, want)
	}
	if s := e.hub.State(); s.Protocol != "quic" || has(registry, health.QUICUnavailable) {
		t.Errorf("state %+v, conditions %v; want quic and no %s", s, registry.Snapshot(), health.QUICUnavailable)
	}
	far := <-conns
	defer far.Close(wire.CloseNormal, "")
	if err := far.Write(push("default/pod/web")); err != nil {
		t.Fatal(err)
	}
	e.until("the push", func() bool { return len(e.got) == 1 })
	answer, err := e.ask(t.Context(), request("default/secret/a"))
	if err != nil {
		t.Error(err)
	} else if got := string(answer.ContentData()); got != "default/secret/a" {
		t.Errorf("answer = %q, want %q", got, "default/secret/a")
	}

	// A network that lets no UDP through any more. With -long the device notices it by itself; else it connects again,
	// and does not wait as long for an answer.
	proxy.Silence(true)
	c := config(e.files, u.addr)
	c.Quic, c.WebSocket.Enable = v1alpha2.Transport{
		Enable:           true,
		Server:           proxy.Addr(),
		HandshakeTimeout: 30,
		WriteDeadline:    15,
	}, false
	if !*long {
		impatient := c
		impatient.Quic.HandshakeTimeout = 1
		if err := e.hub.Configure(impatient); err != nil {
			t.Fatal(err)
		}
	}
	if lost, again := e.told(2), e.told(3); lost.Connected || !again.Connected {
		t.Errorf("news of the link = %+v and %+v, want it lost and connected again", lost, again)
	}
	if s := e.hub.State(); s.Protocol != "websocket" || !has(registry, health.QUICUnavailable) {
		t.Errorf("state %+v, conditions %v; want websocket and %s", s, registry.Snapshot(), health.QUICUnavailable)
	}
	if answer, err := e.ask(t.Context(), request("default/secret/b")); err != nil {
		t.Error(err)
	} else if got := answer.Route.Operation; got != model.OpResponse {
		t.Errorf("answer %s %s, want %s", got, answer.Content, model.OpResponse)
	}

	// And one that does again.
	proxy.Silence(false)
	if err := e.hub.Configure(c); err != nil {
		t.Fatal(err)
	}
	e.told(5)
	if s := e.hub.State(); s.Protocol != "quic" || has(registry, health.QUICUnavailable) {
		t.Errorf("state %+v, conditions %v; want quic and no %s", s, registry.Snapshot(), health.QUICUnavailable)
	}
}

// TestLinkStreams: the cloud reaches the node's kubelet API by streams of the link, and nothing is dialled for it.
func TestLinkStreams(t *testing.T) {
	ca := wiretest.NewCA(t)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "hello from the node")
	}))
	defer api.Close()
	addr, conns, _ := quicCloud(t, ca, nil)
	reached := make(chan string, 1)
	e := startEdge(t, ca, "127.0.0.1:1", with{options: func(o *Options) {
		overQUIC(addr)(o)
		o.KubeletAPI = func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", api.Listener.Addr().String())
		}
		o.ReachedAt = func(address string) { reached <- address }
	}})
	if link := e.told(1); !link.Features.Tunnel || !link.Features.Streams {
		t.Errorf("told %+v, want the features tunnel and streams", link)
	}
	far := <-conns
	defer far.Close(wire.CloseNormal, "")
	stream, _, err := far.Streams().Open(t.Context(), netip.MustParseAddr("192.0.2.1"))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if _, err := io.WriteString(stream, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(stream); err != nil || !strings.HasSuffix(string(got), "hello from the node") {
		t.Errorf("read %q, %v; want the answer of the kubelet API", got, err)
	}
	if at := wait.Receive(t, "the address", reached); at != "192.0.2.1" {
		t.Errorf("the kubelet API is reached at %s, want 192.0.2.1", at)
	}
	if s := e.hub.Tunnels(); s.Opened != 0 || s.Failed != 0 || s.Carried != 1 {
		t.Errorf("state %+v, want one stream and no tunnel", s)
	}
}

// TestQUICReasons: the reasons of QUIC are as plain.
func TestQUICReasons(t *testing.T) {
	ca := wiretest.NewCA(t)
	open, _, _ := quicCloud(t, ca, nil)
	closed, _, _ := quicCloud(t, ca, errors.New("the certificate is that of node edge-2"))
	other, _, _ := quicCloud(t, wiretest.NewCA(t), nil)
	const nobody = "192.0.2.1:10001"
	for want, c := range map[string]struct {
		server string
		own    func(o *Options)
	}{
		"the certificate is that of node edge-2": {closed, nil},
		"has no certificate of the CA in":        {other, nil},
		"the node's certificate expired at": {
			open, func(o *Options) {
				ca.Write(t, strings.TrimSuffix(o.Config.TLSCAFile, "/rootCA.crt"),
					ca.Node(t, "edge-1", time.Now().Add(-time.Minute)))
			},
		},
		"does not answer within": {nobody, nil},
	} {
		e := startEdge(t, ca, "127.0.0.1:1", with{
			options: func(o *Options) {
				overQUIC(c.server)(o)
				if c.own != nil {
					c.own(o)
				}
			},
			settings: func(s *settings) {
				s.targets = s.targets[:1] // without the WebSocket, whose reason would be told
				if c.server == nobody {
					s.targets[0].handshake = 300 * time.Millisecond
				}
			},
		})
		e.reason(want)
	}
}

// TestBothFail: who configured QUIC reads its reason, too.
func TestBothFail(t *testing.T) {
	ca := wiretest.NewCA(t)
	refusing, _, _ := quicCloud(t, ca, errors.New("no room"))
	e := startEdge(t, ca, "127.0.0.1:1", with{options: overQUIC(refusing)})
	text := e.reason("; and by QUIC: the cloud at " + refusing + " refuses the node: no room")
	if want := "nothing listens at 127.0.0.1:1"; !strings.HasPrefix(text, want) {
		t.Errorf("reason %q, want %q at its start", text, want)
	}
	missing := &failure{kind: "no_certificate", text: "no file"}
	if got := joinFailures([]error{missing, missing}); got.Error() != "no file" {
		t.Errorf("the same reason twice = %v, want %q", got, "no file")
	}
	var f *failure
	if got := joinFailures([]error{
		&failure{text: "q", expired: true}, &failure{kind: "dns", text: "w"},
	}); got.Error() != "w; and by QUIC: q" || !errors.As(got, &f) || !f.expired {
		t.Errorf("together = %+v, want %q, expired", got, "w; and by QUIC: q")
	}
}
