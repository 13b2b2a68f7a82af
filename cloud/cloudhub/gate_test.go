package cloudhub

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// testGate refuses the nodes that it names.
type testGate struct {
	mu      sync.Mutex
	refused map[string]error
	passed  func() // called when a connection was admitted; may be nil
}

func (g *testGate) refuse(node string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.refused == nil {
		g.refused = map[string]error{}
	}
	g.refused[node] = err
}

func (g *testGate) Check(node string, cert *x509.Certificate) error {
	if cert == nil || cert.Subject.CommonName != nodePrefix+node {
		return errors.New("this is not the certificate of the connection")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.refused[node]
}

func (g *testGate) Admit(_ context.Context, node string, cert *x509.Certificate, _ netip.Prefix) error {
	err := g.Check(node, cert)
	if err == nil && g.passed != nil {
		g.passed()
	}
	return err
}

// TestGate: over either transport, a connection that the gate refuses is told why, and a session that it refuses later
// ends with the reason.
func TestGate(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{"websocket", "quic"} {
		t.Run(transport, func(t *testing.T) {
			gate := &testGate{}
			c := startCloud(t, func(o *Options) { o.Gate = gate })
			hour := time.Now().Add(time.Hour)
			dial := func(node string) (wire.Conn, error) {
				return wire.DialWebSocket(t.Context(), c.options(node, c.ca.Node(t, node, hour)))
			}
			if transport == "quic" {
				server := c.ca.Server(t)
				l, err := c.hub.ListenQUIC("127.0.0.1:0",
					TLSConfig(func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
						return &server, nil
					}, c.ca.Pool()))
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { defer close(done); _ = c.hub.ServeQUIC(ctx, l) }()
				defer func() { cancel(); <-done }()
				dial = func(node string) (wire.Conn, error) {
					o := c.options(node, c.ca.Node(t, node, hour))
					o.URL = "quic://" + l.Addr().String()
					return wire.DialQUIC(t.Context(), o)
				}
			}
			gate.refuse("n2", errors.New("node n2 was revoked"))
			gate.refuse("n3", fmt.Errorf("the API server does not answer: %w", ErrTryLater))
			for node, want := range map[string]struct {
				status int
				text   string
			}{"n2": {403, "node n2 was revoked"}, "n3": {503, "does not answer"}} {
				_, err := dial(node)
				var refused *wire.Refused
				if !errors.As(err, &refused) || transport == "websocket" && refused.Status != want.status ||
					!strings.Contains(refused.Text, want.text) {
					t.Errorf("%s: %v, want status %d with %q", node, err, want.status, want.text)
				}
			}
			conn, err := dial("n1")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(wire.CloseNormal, "")
			wait.True(t, "the session", func() bool { return c.hub.session("n1") != nil })
			c.hub.Recheck()
			if s := c.hub.session("n1"); s == nil {
				t.Error("session = nil, want it to go on: the gate allows it")
			} else if err := s.ctx.Err(); err != nil {
				t.Errorf("session ended with %v, want it to go on: the gate allows it", err)
			}
			gate.refuse("n1", errors.New("node n1 was revoked"))
			c.hub.RecheckNode("n1")
			for {
				if _, err = conn.Read(); err != nil {
					break
				}
			}
			var closed *wire.Closed
			if !errors.As(err, &closed) || closed.Code != wire.ClosePolicy || closed.Reason != "node n1 was revoked" {
				t.Errorf("ended with %v, want code %d and the gate's reason", err, wire.ClosePolicy)
			}
		})
	}
}

// TestGateInBetween: what changes between the handshake and the session ends the session, although Recheck did not see
// it.
func TestGateInBetween(t *testing.T) {
	t.Parallel()
	gate := &testGate{}
	c := startCloud(t, func(o *Options) { o.Gate = gate })
	gate.passed = func() {
		gate.refuse("n1", errors.New("node n1 was revoked"))
		c.hub.Recheck()
	}
	conn, err := wire.DialWebSocket(t.Context(), c.options("n1", c.ca.Node(t, "n1", time.Now().Add(time.Hour))))
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Read()
	var closed *wire.Closed
	if !errors.As(err, &closed) || closed.Code != wire.ClosePolicy {
		t.Errorf("ended with %v, want code %d", err, wire.ClosePolicy)
	}
	for _, line := range c.api.noted() {
		t.Errorf("the session began: %s, want none", line)
	}
}
