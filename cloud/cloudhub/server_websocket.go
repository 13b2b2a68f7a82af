package cloudhub

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/cloud/cloudhub/handshakes"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/shares"
	"github.com/edgecore-io/edgecore/pkg/sourceaddr"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Limits on a connection before it is a session.
const (
	// headerTimeout is how long a node waits for a connection by default (edgehub's handshakeTimeout). If it were
	// shorter, cloudcore would end connections in a reconnect storm that their nodes still wait for.
	headerTimeout = 30 * time.Second
	// helloTimeout is how long a client may take for the first message of TLS, which it sends at once. The connection
	// counts from then on for headerTimeout.
	helloTimeout = 10 * time.Second
	headerBytes  = 16 << 10
	// handshakesPerCore is how many connections a core works on at once. With two, it has one while the slot of the
	// other changes hands.
	handshakesPerCore = 2
	// handshakesWaiting is how many new connections may wait for each core: about 12 s of its work.
	handshakesWaiting = 8192
)

// group runs the sessions of a server; wait stops it from starting more.
type group struct {
	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

func (g *group) run(f func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.wg.Go(f)
	return true
}

func (g *group) wait() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.wg.Wait()
}

func (h *Hub) limits() wire.Limits {
	return wire.Limits{
		MaxMessage:   h.opts.MaxMessage,
		ReadTimeout:  h.opts.KeepaliveInterval,
		WriteTimeout: h.opts.WriteTimeout,
	}
}

// ServeWebSocket serves edges that connect over WebSocket until the context ends, then ends their sessions. It serves
// any path: the certificate and headers identify the edge.
func (h *Hub) ServeWebSocket(ctx context.Context, l net.Listener, config *tls.Config) error {
	reading := &wire.ReadBuffers{}
	h.listening(1)
	defer h.listening(-1)
	return h.serveUpgrades(ctx, l, config, func(w http.ResponseWriter, r *http.Request, sessions *group) {
		h.accept(ctx, w, r, sessions, wire.AcceptOptions{
			Limits:   h.limits(),
			Features: h.opts.Features,
			Reading:  reading,
		})
	})
}

// serveUpgrades serves connections that become WebSockets until the context ends, and waits for their group.
func (h *Hub) serveUpgrades(
	ctx context.Context, l net.Listener, config *tls.Config, accept func(http.ResponseWriter, *http.Request, *group),
) error {
	var sessions group
	server := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { accept(w, r, &sessions) }),
		ReadHeaderTimeout: headerTimeout,
		MaxHeaderBytes:    headerBytes,
		TLSNextProto:      map[string]func(*http.Server, *tls.Conn, http.Handler){}, // HTTP/2 has no upgrade
		ErrorLog:          log.New(quiet{}, "", 0),
		ConnState: func(c net.Conn, state http.ConnState) {
			switch state {
			case http.StateActive: // its request has been read
				handshakes.Done(c)
			case http.StateHijacked: // it is a session or a tunnel
				if arrival := shares.Of(c); arrival != nil {
					arrival.Done()
				}
			}
		},
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			return context.WithValue(ctx, acceptedKey{}, time.Now())
		},
	}
	server.SetKeepAlivesEnabled(false)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	err := server.Serve(tls.NewListener(h.handshakes.Listen(h.Arrivals(wire.CountBytes(l))), config))
	sessions.wait()
	if ctx.Err() != nil && errors.Is(err, http.ErrServerClosed) {
		return ctx.Err()
	}
	return fmt.Errorf("serve WebSockets on %s: %w", l.Addr(), err)
}

// acceptedKey is the key of the time at which the connection of a request was accepted.
type acceptedKey struct{}

// accept turns a request into a session, or refuses it.
func (h *Hub) accept(
	ctx context.Context, w http.ResponseWriter, r *http.Request, sessions *group, opts wire.AcceptOptions,
) {
	if r.TLS == nil {
		http.Error(w, "TLS is needed", http.StatusForbidden)
		return
	}
	node, why := h.admit(r.Header, r.TLS.PeerCertificates)
	if why == nil {
		why = h.checkGate(r.Context(), node, r.TLS.PeerCertificates[0], sourceaddr.Parse(r.RemoteAddr))
	}
	if why == nil {
		switch r.Header.Get(wire.HeaderUse) {
		case wire.UseTunnel:
			h.acceptTunnel(ctx, w, r, node, sessions)
			return
		case wire.UseAPI:
			h.acceptAPI(ctx, w, r, node, sessions)
			return
		}
	}
	instance := wire.ParseInstance(r.Header)
	if why == nil {
		accepted, _ := r.Context().Value(acceptedKey{}).(time.Time)
		why = h.unique(r.Context(), caller{
			node: node, instance: instance, holder: certs.HolderOf(r.TLS.PeerCertificates[0]),
			remote: r.RemoteAddr, accepted: accepted,
		})
	}
	if why != nil {
		h.refused.logRefusal(r.RemoteAddr, clip(r.Header.Get(wire.HeaderNodeID), 64), why)
		http.Error(w, why.text, why.status)
		return
	}
	conn, err := wire.AcceptWebSocket(w, r, opts)
	if err != nil {
		h.metrics.refused.WithLabelValues("upgrade").Inc()
		klog.V(2).InfoS("Connection refused", "remote", r.RemoteAddr, "node", node, "why", err)
		return
	}
	cert := r.TLS.PeerCertificates[0]
	if !sessions.run(func() {
		if s := h.open(ctx, node, cert.NotAfter, identified{conn, cert, instance}); s != nil {
			s.recheck()
			sessions.wg.Go(s.run)
		}
	}) {
		_ = conn.Close(wire.CloseGoingAway, "cloudcore stops")
	}
}

// quiet logs the HTTP server's messages about single connections at a verbosity that does not fill the log: any client
// can cause them.
type quiet struct{}

func (quiet) Write(p []byte) (int, error) {
	klog.V(3).InfoS("Connection failed", "why", strings.TrimSpace(string(p)))
	return len(p), nil
}
