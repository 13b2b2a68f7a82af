package cloudhub

import (
	"context"
	"crypto/tls"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// listenQUIC makes a listener of a cloud for QUIC; ServeQUIC closes it.
func listenQUIC(t *testing.T, c *cloud) *wire.QUICListener {
	t.Helper()
	server := c.ca.Server(t)
	l, err := c.hub.ListenQUIC("127.0.0.1:0", TLSConfig(func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return &server, nil
	}, c.ca.Pool()))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestQUIC(t *testing.T) {
	t.Parallel()
	c := startCloud(t, nil)
	l := listenQUIC(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.hub.ServeQUIC(ctx, l) }()
	dial := func(node, certificate string) (wire.Conn, error) {
		opts := c.options(node, c.ca.Node(t, certificate, time.Now().Add(time.Hour)))
		opts.URL = "https://" + l.Addr().String()
		return wire.DialQUIC(t.Context(), opts)
	}
	c.cluster.set("n1", "default/pod/web", "u", "a")
	conn, err := dial("n1", "n1")
	if err != nil {
		t.Fatal(err)
	}
	e := newEdge(t, "n1").over(conn)
	settled(t, c, e)
	wait.True(t, "the answer to the inventory", e.isSynced)
	c.cluster.set("n1", "default/pod/web", "u", "b")
	settled(t, c, e)

	var refused *wire.Refused
	if _, err := dial("n1", "n2"); !errors.As(err, &refused) || !strings.Contains(refused.Text, "not for node n1") {
		t.Errorf("with another node's certificate: %v, want a refusal that names n1", err)
	}
	if s := c.hub.session("n1"); s == nil {
		t.Error("session of n1 = nil, want one with protocol edgecore/quic")
	} else if got, want := s.protocol(), "edgecore/quic"; got != want {
		t.Errorf("protocol of the session of n1 = %q, want %q", got, want)
	}
	// The same node by WebSocket takes over, whatever the protocol.
	again := newEdge(t, "n1")
	again.objects = e.holds()
	again.dialOurs(c)
	if err := e.waitEnd(); err == nil || !strings.Contains(err.Error(), "a newer connection") {
		t.Errorf("ended with %v, want it to name the newer connection", err)
	}
	settled(t, c, again)
	if n := len(again.lines()); n != 0 {
		t.Errorf("sent %v, want nothing", again.lines())
	}
	if conn, err = dial("n2", "n2"); err != nil {
		t.Fatal(err)
	}
	last := newEdge(t, "n2").over(conn)
	wait.True(t, "the session", func() bool { return c.hub.session("n2") != nil })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the server ended with %v, want %v", err, context.Canceled)
	}
	if err := last.waitEnd(); err == nil || !strings.Contains(err.Error(), "cloudcore stops") {
		t.Errorf("ended with %v, want that cloudcore stops", err)
	}
}
