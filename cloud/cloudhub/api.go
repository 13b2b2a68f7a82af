package cloudhub

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/tunnel"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// API serves the requests to the Kubernetes API that clients on nodes send. They come over streams of connections that
// the nodes open beside their links, to any cloudcore (wire.DialAPI).
type API interface {
	// ServeStream serves a stream of a node, on which the node speaks HTTP/1.1. It owns the stream, and does not block.
	ServeStream(node string, stream net.Conn)
}

// apiSession is a node's connection for the API. It does not need a session of the node here.
type apiSession struct {
	node     string
	cert     *x509.Certificate
	acceptor *tunnel.APIAcceptor
	done     chan struct{}
}

// closeLink closes the connection. It does not wait until its streams are served.
func (s *apiSession) closeLink(reason string) {
	klog.V(2).InfoS("Connection for the API ended", "node", s.node, "reason", reason)
	_ = s.acceptor.Close() // only the first close counts
}

// acceptAPI turns a request of an identified node into its connection for the API, or refuses it.
func (h *Hub) acceptAPI(ctx context.Context, w http.ResponseWriter, r *http.Request, node string, sessions *group) {
	if h.opts.API == nil {
		why := refuse(http.StatusNotFound, "api",
			"this cloudcore does not forward requests to the Kubernetes API: modules.dynamicController is switched off")
		h.metrics.refused.WithLabelValues(why.cause).Inc()
		h.refused.logRefusal(r.RemoteAddr, node, why)
		http.Error(w, why.text, why.status)
		return
	}
	cert := r.TLS.PeerCertificates[0]
	conn, err := wire.AcceptTunnel(w, r)
	if err != nil {
		h.metrics.refused.WithLabelValues("upgrade").Inc()
		klog.V(2).InfoS("Connection for the API refused", "remote", r.RemoteAddr, "node", node, "why", err)
		return
	}
	if !sessions.run(func() { h.serveAPI(ctx, node, cert, conn) }) {
		_ = conn.Close()
	}
}

// serveAPI serves a connection for the API until it ends: the node closes it or is silent, a newer one of the node
// replaces it, its certificate expires or is refused, or ctx ends.
func (h *Hub) serveAPI(ctx context.Context, node string, cert *x509.Certificate, conn net.Conn) {
	acceptor, err := tunnel.NewAPIAcceptor(conn, h.opts.Memory)
	if err != nil { // only of a wrong configuration
		klog.ErrorS(err, "Connection for the API failed", "node", node)
		_ = conn.Close()
		return
	}
	s := &apiSession{node: node, cert: cert, acceptor: acceptor, done: make(chan struct{})}
	defer close(s.done)
	older, err := h.registerAPI(s)
	if err != nil {
		h.metrics.refused.WithLabelValues("limit").Inc()
		klog.InfoS("Connection for the API refused", "node", node, "remote", conn.RemoteAddr(), "err", err)
		_ = acceptor.Close()
		return
	}
	defer h.unregisterAPI(s)
	defer context.AfterFunc(ctx, func() { s.closeLink("cloudcore stops") })()
	defer time.AfterFunc(time.Until(cert.NotAfter), func() { s.closeLink("its certificate has expired") }).Stop()
	if older != nil {
		older.closeLink("a newer connection of the node replaces it")
		<-older.done // so that a node has one connection's share of the memory
	}
	h.recheckAPI(s) // a change since Admit reached only the connections registered then
	klog.V(2).InfoS("Connection for the API opened", "node", node, "remote", conn.RemoteAddr())
	began := time.Now()
	err = acceptor.Serve(func(stream net.Conn) { h.opts.API.ServeStream(node, stream) })
	klog.V(2).InfoS("Connection for the API closed", "node", node, "after", time.Since(began).Round(time.Second),
		"reason", err)
}

// registerAPI makes s the node's connection for the API. It returns an error if the hub is full or stopping.
func (h *Hub) registerAPI(s *apiSession) (older *apiSession, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, fmt.Errorf("cloudcore stops")
	}
	older = h.apis[s.node]
	if older == nil && len(h.apis) >= h.limit.nodes {
		return nil, h.limit.full()
	}
	h.apis[s.node] = s
	return older, nil
}

// unregisterAPI removes a connection, unless a newer one has replaced it.
func (h *Hub) unregisterAPI(s *apiSession) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.apis[s.node] == s {
		delete(h.apis, s.node)
	}
}

// api returns a node's connection for the API, or nil.
func (h *Hub) api(node string) *apiSession {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.apis[node]
}

func (h *Hub) allAPIs() []*apiSession {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]*apiSession, 0, len(h.apis))
	for _, s := range h.apis {
		all = append(all, s)
	}
	return all
}

// recheckAPI ends a connection that the gate refuses.
func (h *Hub) recheckAPI(s *apiSession) {
	if h.opts.Gate == nil {
		return
	}
	if err := h.opts.Gate.Check(s.node, s.cert); err != nil {
		s.closeLink(err.Error())
	}
}
