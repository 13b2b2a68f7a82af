package wire

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// tunnelPair returns both ends of a tunnel over TLS.
func tunnelPair(t *testing.T) (edge, far net.Conn) {
	t.Helper()
	c := &cloud{ca: wiretest.NewCA(t)}
	accepted := make(chan net.Conn, 1)
	c.addr = serve(t, c.ca, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(HeaderTunnel) != "token" || r.Header.Get(HeaderUse) != UseTunnel {
			http.Error(w, "not for me", http.StatusMisdirectedRequest)
			return
		}
		conn, err := AcceptTunnel(w, r)
		if err != nil {
			t.Errorf("accept: %v", err)
			return
		}
		accepted <- conn
	}))
	o := c.options(t, c.addr, DialOptions{})
	var refused *Refused
	if _, err := DialTunnel(t.Context(), o, "other"); !errors.As(err, &refused) ||
		refused.Status != http.StatusMisdirectedRequest {
		t.Errorf("DialTunnel with another token = %v, want status 421", err)
	}
	edge, err := DialTunnel(t.Context(), o, "token")
	if err != nil {
		t.Fatal(err)
	}
	far = <-accepted
	t.Cleanup(func() {
		_ = edge.Close()
		_ = far.Close()
	})
	return edge, far
}

// TestTunnel: bytes pass unchanged both ways, whatever the sizes of the writes.
func TestTunnel(t *testing.T) {
	edge, far := tunnelPair(t)
	data := make([]byte, 300<<10)
	_, _ = rand.Read(data) // never fails
	for _, ends := range [][2]net.Conn{{edge, far}, {far, edge}} {
		var want []byte
		parts := [][]byte{data[:1], data[:12], data[:16<<10], data[:16<<10+1], data, data[:1]}
		for _, p := range parts {
			want = append(want, p...)
		}
		go func() {
			for _, p := range parts {
				if n, err := ends[0].Write(p); n != len(p) || err != nil {
					t.Errorf("Write = %d, %v, want %d", n, err, len(p))
				}
			}
		}()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(ends[1], got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("read: %v, same bytes: %v; want those that were written", err, bytes.Equal(got, want))
		}
	}
}

// TestTunnelEnds: each end notices at once that the other one is gone, or has closed it.
func TestTunnelEnds(t *testing.T) {
	for _, closer := range []int{0, 1} {
		edge, far := tunnelPair(t)
		ends := []net.Conn{edge, far}
		ended := make(chan error, 1)
		go func() {
			_, err := ends[1-closer].Read(make([]byte, 1))
			ended <- err
		}()
		if err := ends[closer].Close(); err != nil {
			t.Error(err)
		}
		if err := wait.Receive(t, "the other end to notice", ended); err == nil {
			t.Error("Read returned no error, want one")
		}
		if _, err := ends[closer].Read(make([]byte, 1)); err == nil {
			t.Error("Read after Close returned no error, want one")
		}
	}
}

// TestTunnelRefusesText: a message of another kind, or one that is too large, ends the tunnel.
func TestTunnelRefusesText(t *testing.T) {
	for name, send := range map[string]func(ws *websocket.Conn) error{
		"text": func(ws *websocket.Conn) error {
			return ws.WriteMessage(websocket.TextMessage, []byte("hello"))
		},
		"large": func(ws *websocket.Conn) error {
			return ws.WriteMessage(websocket.BinaryMessage, make([]byte, 1<<20))
		},
	} {
		edge, far := tunnelPair(t)
		go func() { _ = send(edge.(*tunnel).Conn) }() // fails when the other end closes
		if _, err := io.Copy(io.Discard, far); err == nil {
			t.Errorf("%s: read without an error, want one", name)
		}
		_ = far.Close()
	}
}

// TestDialAPI: a connection for the API names its use, has no token, and carries bytes both ways.
func TestDialAPI(t *testing.T) {
	c := &cloud{ca: wiretest.NewCA(t)}
	accepted := make(chan net.Conn, 1)
	c.addr = serve(t, c.ca, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if use, token := r.Header.Get(HeaderUse), r.Header.Values(HeaderTunnel); use != UseAPI || len(token) > 0 {
			t.Errorf("%s is %q, and %s %q; want %q and none", HeaderUse, use, HeaderTunnel, token, UseAPI)
		}
		conn, err := AcceptTunnel(w, r)
		if err != nil {
			t.Errorf("accept: %v", err)
		}
		accepted <- conn
	}))
	edge, err := DialAPI(t.Context(), c.options(t, c.addr, DialOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	far := <-accepted
	defer edge.Close()
	defer far.Close()
	for _, ends := range [][2]net.Conn{{edge, far}, {far, edge}} {
		if _, err := ends[0].Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 5)
		if _, err := io.ReadFull(ends[1], got); err != nil || string(got) != "hello" {
			t.Errorf("read %q, %v; want hello", got, err)
		}
	}
}

// TestAPIFeature: the feature is agreed on if both ends of a WebSocket offer it, and never over QUIC.
func TestAPIFeature(t *testing.T) {
	both := Features{Lease: true, API: true}
	if got := ParseFeatures(http.Header{HeaderFeatures: {both.String()}}); got != both {
		t.Errorf("ParseFeatures(%q) = %+v, want %+v", both.String(), got, both)
	}
	if got := both.And(Features{Lease: true}); got.API {
		t.Error("And has the feature that one end alone offers, want it not to")
	}
	cloud := newQUICCloud(t, letAll(AcceptOptions{Limits: patient, Features: both}))
	edge, far := cloud.pair(cloud.options(cloud.addr, both))
	if edge.Features().API || far.Features().API {
		t.Errorf("over QUIC: features %v and %v, want none to be api", edge.Features(), far.Features())
	}
}
