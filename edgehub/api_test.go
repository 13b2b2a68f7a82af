package edgehub

import (
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/edgecore-io/edgecore/edgehub/apitunnel"
	"github.com/edgecore-io/edgecore/pkg/shares"
	"github.com/edgecore-io/edgecore/pkg/tunnel"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/pkg/wire/wiretest"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestAPI: a device reaches the Kubernetes API through its cloud over a connection beside the link, with its own
// certificate, if both have agreed on it.
func TestAPI(t *testing.T) {
	for name, offered := range map[string]bool{"offered": true, "not offered": false} {
		t.Run(name, func(t *testing.T) {
			ca := wiretest.NewCA(t)
			var parts sync.WaitGroup
			s := &http.Server{TLSConfig: ca.ServerTLS(t), ErrorLog: log.New(io.Discard, "", 0)}
			s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if name := r.TLS.PeerCertificates[0].Subject.CommonName; name != "system:node:edge-1" ||
					r.Header.Get(wire.HeaderNodeID) != "edge-1" {
					t.Errorf("certificate of %q, node_id %q; want both to be edge-1's", name,
						r.Header.Get(wire.HeaderNodeID))
				}
				if r.Header.Get(wire.HeaderUse) != wire.UseAPI {
					c, err := wire.AcceptWebSocket(w, r, wire.AcceptOptions{
						Features: wire.Features{Inventory: true, Lease: true, API: offered},
					})
					if err != nil {
						t.Error(err)
						return
					}
					parts.Go(func() {
						for _, err := c.Read(); err == nil; _, err = c.Read() {
						}
						_ = c.Close(wire.CloseNormal, "")
					})
					return
				}
				conn, err := wire.AcceptTunnel(w, r)
				if err != nil {
					t.Error(err)
					return
				}
				a, err := tunnel.NewAPIAcceptor(conn, shares.NewMemory())
				if err != nil {
					t.Error(err)
					return
				}
				parts.Go(func() {
					_ = a.Serve(func(s net.Conn) {
						_, _ = io.WriteString(s, "hello")
						_ = s.Close()
					})
				})
			})
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			parts.Go(func() { _ = s.ServeTLS(wire.CountBytes(l), "", "") })
			t.Cleanup(parts.Wait) // after the device has ended
			t.Cleanup(func() { _ = s.Close() })
			e := startEdge(t, ca, l.Addr().String(), with{options: func(o *Options) { o.API = true }})
			if link := e.told(1); link.Features.API != offered {
				t.Errorf("features %v, want api: %v", link.Features, offered)
			}
			stream, err := e.hub.API().Open(t.Context())
			if !offered {
				if !errors.Is(err, apitunnel.ErrNotOffered) {
					t.Errorf("Open = %v, want %v", err, apitunnel.ErrNotOffered)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Close()
			if got, err := io.ReadAll(stream); err != nil || string(got) != "hello" {
				t.Errorf("read %q, %v; want hello", got, err)
			}
			if up, since := e.hub.API().Connected(); !up || since.IsZero() {
				t.Errorf("Connected = %v, %v; want true, and since when", up, since)
			}
			_ = s.Close()
			e.hub.Reconnect()
			wait.True(t, "the loss of the link", func() bool { up, _ := e.hub.API().Connected(); return !up })
		})
	}
}

// TestNoAPI: a device that forwards nothing to the Kubernetes API offers nothing.
func TestNoAPI(t *testing.T) {
	hub, err := New(Options{Node: "edge-1", Config: config(wiretest.Files{}, "192.0.2.1:10000")})
	if err != nil {
		t.Fatal(err)
	}
	if hub.set.features.API || hub.API() != nil {
		t.Errorf("features %v, API %v; want neither", hub.set.features, hub.API())
	}
}
