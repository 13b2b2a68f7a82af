package cloudhub

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gorilla/websocket"

	"github.com/edgecore-io/edgecore/pkg/edgestream"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// echoes are tunnels that return what they get. Each node has the token "for-NODE".
type echoes struct {
	// opened gets the streams of links that have some.
	opened chan Streams

	mu    sync.Mutex
	calls []string
}

func (e *echoes) note(what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls = append(e.calls, what)
}

func (e *echoes) Connected(node string, from netip.Addr, streams Streams) {
	e.note("connected " + node + " from " + from.String())
	if streams != nil {
		e.opened <- streams
	}
}
func (e *echoes) Disconnected(node string)        { e.note("disconnected " + node) }
func (e *echoes) Expects(node, token string) bool { return token == "for-"+node }
func (e *echoes) Serve(_ context.Context, _, _ string, conn net.Conn) {
	_, _ = io.Copy(conn, conn)
	_ = conn.Close()
}

func (e *echoes) ServeStream(_ context.Context, node string, conn *edgestream.Conn) {
	e.note("stream of " + node)
	for {
		m, err := conn.Read()
		if err != nil {
			e.note("end of the stream of " + node)
			return
		}
		if conn.Write(m) != nil {
			return
		}
	}
}

// TestTunnels: a node opens the tunnel that it was asked for, with a certificate of its own and while it is connected;
// nothing else is let in. The tunnel ends with the link.
func TestTunnels(t *testing.T) {
	t.Parallel()
	tunnels := &echoes{}
	c := startCloud(t, func(o *Options) { o.Tunnels = tunnels })
	cert := func(node string) wire.DialOptions {
		o := c.options(node, c.ca.Node(t, node, time.Now().Add(time.Hour)))
		o.Features.Tunnel = true
		return o
	}
	conn, err := wire.DialWebSocket(t.Context(), cert("n1"))
	if err != nil {
		t.Fatal(err)
	}
	if !conn.Features().Tunnel {
		t.Error("the hub has not agreed to tunnels, want it to")
	}
	link := newEdge(t, "n1").over(conn)
	other := newEdge(t, "n2").dialOurs(c) // offers none
	wait.True(t, "the sessions", func() bool { return len(c.hub.Connected()) == 2 })

	stolen := cert("n2")
	stolen.Header = nodeHeader("n1")
	for name, tc := range map[string]struct {
		options wire.DialOptions
		token   string
		status  int
		text    string
	}{
		"another node's certificate": {stolen, "for-n1", 403, "not for node n1"},
		"another node's token":       {cert("n2"), "for-n1", 421, "has not asked node n2"},
		"no token":                   {cert("n1"), "", 421, "has not asked node n1"},
		"a node without a link":      {cert("n3"), "for-n3", 421, "has not asked node n3"},
	} {
		var refused *wire.Refused
		if _, err := wire.DialTunnel(t.Context(), tc.options, tc.token); !errors.As(err, &refused) ||
			refused.Status != tc.status || !strings.Contains(refused.Text, tc.text) {
			t.Errorf("%s: %v, want status %d and %q", name, err, tc.status, tc.text)
		}
	}
	tunnel, err := wire.DialTunnel(t.Context(), cert("n1"), "for-n1")
	if err != nil {
		t.Fatal(err)
	}
	defer tunnel.Close()
	if _, err := tunnel.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(tunnel, got); err != nil || string(got) != "hello" {
		t.Errorf("read %q, %v, want hello", got, err)
	}
	if len(c.hub.Connected()) != 2 {
		t.Error("the tunnel has replaced a session, want both sessions")
	}
	link.bye()
	if _, err := tunnel.Read(got); err == nil {
		t.Error("the tunnel goes on after the link has ended, want it to end")
	}
	other.bye()
	wait.True(t, "the end of the sessions", func() bool { return len(c.hub.Connected()) == 0 })
	tunnels.mu.Lock()
	defer tunnels.mu.Unlock()
	if diff := cmp.Diff([]string{"connected n1 from 127.0.0.1", "disconnected n1"}, tunnels.calls); diff != "" {
		t.Errorf("calls mismatch (-want +got):\n%s", diff)
	}
}

// TestLinkStreams: over QUIC, tunnels are told of the link's streams, which reach the node and end with the session.
func TestLinkStreams(t *testing.T) {
	t.Parallel()
	tunnels := &echoes{opened: make(chan Streams, 1)}
	c := startCloud(t, func(o *Options) { o.Tunnels = tunnels })
	l, err := c.hub.ListenQUIC("127.0.0.1:0", c.serverTLS())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- c.hub.ServeQUIC(ctx, l) }()
	defer func() { cancel(); <-served }()
	o := c.options("n1", c.ca.Node(t, "n1", time.Now().Add(time.Hour)))
	o.URL, o.Features.Tunnel = "quic://"+l.Addr().String(), true
	conn, err := wire.DialQUIC(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	link := newEdge(t, "n1").over(conn)
	streams := wait.Receive(t, "the streams of the link", tunnels.opened)
	stream, _, err := streams.Open(t.Context(), netip.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	node, err := conn.Streams().Accept(t.Context())
	if err == nil {
		_, err = node.Opener()
	}
	if err == nil {
		_, err = node.Write([]byte("hello"))
	}
	got := make([]byte, 5)
	if _, readErr := io.ReadFull(stream, got); err != nil || readErr != nil || string(got) != "hello" {
		t.Errorf("read %q, %v, %v, want hello", got, err, readErr)
	}
	c.hub.Disconnect("n1", "its certificate was revoked")
	if _, err := stream.Read(got); err == nil || err == io.EOF {
		t.Errorf("Read after the end of the session = %v, want an error that is not EOF", err)
	}
	if _, _, err := streams.Open(t.Context(), netip.Addr{}); err == nil {
		t.Error("a stream opens after the end of the session, want an error")
	}
	link.bye()
}

// TestNoTunnels: a hub without tunnels agrees to none and lets none in.
func TestNoTunnels(t *testing.T) {
	t.Parallel()
	c := startCloud(t, nil)
	o := c.options("n1", c.ca.Node(t, "n1", time.Now().Add(time.Hour)))
	o.Features.Tunnel = true
	conn, err := wire.DialWebSocket(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer newEdge(t, "n1").over(conn).bye()
	if conn.Features().Tunnel {
		t.Error("the hub has agreed to tunnels, want no such feature")
	}
	var refused *wire.Refused
	if _, err := wire.DialTunnel(t.Context(), o, "x"); !errors.As(err, &refused) || refused.Status != 404 {
		t.Errorf("DialTunnel = %v, want status 404", err)
	}
}

// TestStreams: a node of KubeEdge's opens its stream tunnel with a certificate of its own and while it has a link; the
// tunnel ends with the link.
func TestStreams(t *testing.T) {
	t.Parallel()
	tunnels := &echoes{}
	c := startCloud(t, func(o *Options) { o.Tunnels = tunnels })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- c.hub.ServeStreams(ctx, l, c.serverTLS()) }()
	defer func() { cancel(); <-served }()
	dial := func(holder, node, path string) (*websocket.Conn, string) {
		t.Helper()
		dialer := websocket.Dialer{TLSClientConfig: c.clientTLS(c.ca.Node(t, holder, time.Now().Add(time.Hour)))}
		ws, resp, err := dialer.Dial("wss://"+l.Addr().String()+path, http.Header{edgestream.HeaderNode: {node}})
		if err == nil {
			return ws, ""
		}
		if resp == nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		return nil, resp.Status + ": " + strings.TrimSpace(string(text))
	}
	theirs := newEdge(t, "n1").dialUpstream(c)
	ours := newEdge(t, "n2").dialOurs(c) // without a tunnel of ours, as with tunnel: never
	wait.True(t, "the sessions", func() bool { return len(c.hub.Connected()) == 2 })
	for name, tc := range map[string]struct{ holder, node, path, want string }{
		"another's":   {"n3", "n1", edgestream.Path, `403 Forbidden: the certificate is for "n3"`},
		"no link":     {"n3", "n3", edgestream.Path, "503 Service Unavailable: node n3 has no link to"},
		"ours":        {"n2", "n2", edgestream.Path, "409 Conflict: node n2 is not KubeEdge's"},
		"no name":     {"n1", "", edgestream.Path, "400 Bad Request"},
		"another use": {"n1", "n1", "/", "404 Not Found: only /v1/kubeedge/connect is served here"},
	} {
		if ws, why := dial(tc.holder, tc.node, tc.path); ws != nil || !strings.HasPrefix(why, tc.want) {
			t.Errorf("%s: let in: %v, %q; want %q", name, ws != nil, why, tc.want)
		}
	}
	ws, why := dial("n1", "n1", edgestream.Path)
	if ws == nil {
		t.Fatalf("the stream tunnel is refused: %s; want it open", why)
	}
	defer ws.Close()
	m := edgestream.Message{ID: 1, Kind: edgestream.Data, Data: []byte("hello")}
	if err := ws.WriteMessage(websocket.TextMessage, m.Encode()); err != nil {
		t.Fatal(err)
	}
	if _, text, err := ws.ReadMessage(); err != nil || string(text) != string(m.Encode()) {
		t.Errorf("read %q, %v, want hello", text, err)
	}
	theirs.bye()
	if _, _, err := ws.ReadMessage(); err == nil {
		t.Error("the stream tunnel goes on after the link has ended, want it to end")
	}
	ours.bye()
	wait.True(t, "the end of the stream", func() bool {
		tunnels.mu.Lock()
		defer tunnels.mu.Unlock()
		return slices.Contains(tunnels.calls, "end of the stream of n1")
	})
}
