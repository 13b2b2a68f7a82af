package cloudhub

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgecore-io/edgecore/pkg/tunnel"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// greeter is an API that sends the node's name on each stream, and ends it.
type greeter struct{}

func (greeter) ServeStream(node string, stream net.Conn) {
	go func() {
		_, _ = io.WriteString(stream, node) // an error is the end of the stream
		_ = stream.Close()
	}()
}

// dialAPI opens a node's connection for the API.
func dialAPI(t *testing.T, c *cloud, node string, cert tls.Certificate) *tunnel.APIOpener {
	t.Helper()
	conn, err := wire.DialAPI(c.ctx, c.options(node, cert))
	if err != nil {
		t.Fatal(err)
	}
	o, err := tunnel.NewAPIOpener(conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close() })
	return o
}

// greeted opens a stream, and returns what comes over it.
func greeted(o *tunnel.APIOpener) (string, error) {
	s, err := o.Open(context.Background())
	if err != nil {
		return "", err
	}
	defer s.Close()
	got, err := io.ReadAll(s)
	return string(got), err
}

// TestAPIStreams: a node opens a connection for the API with its own certificate, also without a link here, and its
// streams are served in its name. Another node's certificate opens none.
func TestAPIStreams(t *testing.T) {
	t.Parallel()
	c := startCloud(t, func(o *Options) { o.API = greeter{} })
	hour := time.Now().Add(time.Hour)
	o := c.options("n1", c.ca.Node(t, "n1", hour))
	o.Features.API = true
	link, err := wire.DialWebSocket(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if !link.Features().API {
		t.Error("the hub has not agreed to the feature, want it to")
	}
	_ = link.Close(wire.CloseNormal, "")
	for _, node := range []string{"n1", "n2"} {
		opener := dialAPI(t, c, node, c.ca.Node(t, node, hour))
		for range 3 {
			if got, err := greeted(opener); err != nil || got != node {
				t.Errorf("a stream of %s: %q, %v; want its name", node, got, err)
			}
		}
	}
	stolen := c.options("n1", c.ca.Node(t, "n2", hour))
	var refused *wire.Refused
	if _, err := wire.DialAPI(t.Context(), stolen); !errors.As(err, &refused) || refused.Status != 403 ||
		!strings.Contains(refused.Text, "not for node n1") {
		t.Errorf("with another node's certificate: %v, want status 403", err)
	}
}

// TestNoAPI: a hub without an API agrees to none, and lets none in.
func TestNoAPI(t *testing.T) {
	t.Parallel()
	c := startCloud(t, nil)
	o := c.options("n1", c.ca.Node(t, "n1", time.Now().Add(time.Hour)))
	o.Features.API = true
	conn, err := wire.DialWebSocket(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer newEdge(t, "n1").over(conn).bye()
	if conn.Features().API {
		t.Error("the hub has agreed to the feature, want it not to")
	}
	var refused *wire.Refused
	if _, err := wire.DialAPI(t.Context(), o); !errors.As(err, &refused) || refused.Status != 404 {
		t.Errorf("DialAPI = %v, want status 404", err)
	}
}

// TestAPIEnds: what ends a link ends a connection for the API as well, also of a node without a link here.
func TestAPIEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, c *cloud, gate *testGate){
		"Disconnect": func(_ *testing.T, c *cloud, _ *testGate) { c.hub.Disconnect("n1", "the node was deleted") },
		"RecheckNode": func(_ *testing.T, c *cloud, gate *testGate) {
			gate.refuse("n1", errors.New("it belongs to another device"))
			c.hub.RecheckNode("n1")
		},
		"Recheck": func(_ *testing.T, c *cloud, gate *testGate) {
			gate.refuse("n1", errors.New("its certificate is revoked"))
			c.hub.Recheck()
		},
		"stop": func(_ *testing.T, c *cloud, _ *testGate) { c.stop() },
	} {
		t.Run(name, func(t *testing.T) {
			gate := &testGate{}
			c := startCloud(t, func(o *Options) { o.API, o.Gate = greeter{}, gate })
			hour := time.Now().Add(time.Hour)
			first, other := dialAPI(t, c, "n1", c.ca.Node(t, "n1", hour)), dialAPI(t, c, "n2", c.ca.Node(t, "n2", hour))
			for _, o := range []*tunnel.APIOpener{first, other} {
				if _, err := greeted(o); err != nil {
					t.Fatal(err)
				}
			}
			end(t, c, gate)
			wait.Closed(t, "the end of the connection", first.Closed())
			if name == "stop" {
				wait.Closed(t, "the end of the other connection", other.Closed())
			} else if _, err := greeted(other); err != nil {
				t.Errorf("another node's stream: %v, want it to go on", err)
			}
		})
	}
}

// TestAPIRecheckedAtItsStart: a certificate that is refused after Admit does not keep its connection.
func TestAPIRecheckedAtItsStart(t *testing.T) {
	t.Parallel()
	gate := &testGate{}
	gate.passed = func() { gate.refuse("n1", errors.New("its certificate is revoked")) }
	c := startCloud(t, func(o *Options) { o.API, o.Gate = greeter{}, gate })
	o := dialAPI(t, c, "n1", c.ca.Node(t, "n1", time.Now().Add(time.Hour)))
	wait.Closed(t, "the end of the connection", o.Closed())
}

// TestAPIReplaced: a node has one connection for the API: a newer one ends the older.
func TestAPIReplaced(t *testing.T) {
	t.Parallel()
	c := startCloud(t, func(o *Options) { o.API = greeter{} })
	cert := c.ca.Node(t, "n1", time.Now().Add(time.Hour))
	older := dialAPI(t, c, "n1", cert)
	if _, err := greeted(older); err != nil {
		t.Fatal(err)
	}
	newer := dialAPI(t, c, "n1", cert)
	wait.Closed(t, "the end of the older connection", older.Closed())
	if got, err := greeted(newer); err != nil || got != "n1" {
		t.Errorf("a stream of the newer connection: %q, %v; want n1", got, err)
	}
}

// TestAPILimit: no more nodes have a connection for the API than may be connected.
func TestAPILimit(t *testing.T) {
	t.Parallel()
	c := startCloud(t, func(o *Options) { o.API, o.NodeLimit = greeter{}, 1 })
	hour := time.Now().Add(time.Hour)
	first := dialAPI(t, c, "n1", c.ca.Node(t, "n1", hour))
	if _, err := greeted(first); err != nil {
		t.Fatal(err)
	}
	over := dialAPI(t, c, "n2", c.ca.Node(t, "n2", hour))
	wait.Closed(t, "the end of the connection over the limit", over.Closed())
	if _, err := greeted(first); err != nil {
		t.Errorf("a stream of the first connection: %v, want it to go on", err)
	}
}

// TestAPICertificateExpires: a connection for the API ends when its certificate expires.
func TestAPICertificateExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startInMemory(t, func(o *Options) { o.API = greeter{} })
		end := time.Now().Add(time.Minute).Truncate(time.Second)
		o := dialAPI(t, c, "n1", c.ca.Node(t, "n1", end))
		<-o.Closed()
		if got := time.Now(); got.Before(end) || got.After(end.Add(time.Second)) {
			t.Errorf("ended at %v, want %v", got, end)
		}
		c.stop()
	})
}
