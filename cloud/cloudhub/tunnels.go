package cloudhub

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/edgestream"
	"github.com/edgecore-io/edgecore/pkg/sourceaddr"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Tunnels carries connections to the kubelet APIs of nodes that open tunnels on request (package pkg/tunnel). A tunnel
// lasts no longer than the session of its node.
type Tunnels interface {
	// Connected is called when the session of such a node has begun, before Upstream.Connected, with the address that
	// it comes from, and the streams of its link if it has some: nil is none, and tunnels are needed. Disconnected is
	// called when it has ended. Neither blocks.
	Connected(node string, from netip.Addr, streams Streams)
	Disconnected(node string)
	// Expects reports whether this cloudcore has asked the node for a tunnel with that token.
	Expects(node, token string) bool
	// Serve serves a tunnel until it ends. It owns the connection.
	Serve(ctx context.Context, node, token string, conn net.Conn)
	// ServeStream serves the stream tunnel of a node of KubeEdge's, which the node opens by itself, until it ends. It
	// owns the connection.
	ServeStream(ctx context.Context, node string, conn *edgestream.Conn)
}

// Streams opens streams of a node's link to its kubelet API (wire.Streams). They end with the session. address is where
// callers reach the kubelet API. lost ends with the session, or when the stream is ended because its data is not read;
// its cause is shares.ErrUnread then.
type Streams interface {
	Open(ctx context.Context, address netip.Addr) (c net.Conn, lost context.Context, err error)
}

// streamsOf returns the streams of a link, or nil if streams were not agreed on.
func streamsOf(conn wire.Conn) Streams {
	if s := conn.Streams(); s != nil {
		return s
	}
	return nil
}

// acceptTunnel turns a request of an identified node into a tunnel, or refuses it.
func (h *Hub) acceptTunnel(ctx context.Context, w http.ResponseWriter, r *http.Request, node string, tunnels *group) {
	token := r.Header.Get(wire.HeaderTunnel)
	var why *refusal
	s := h.session(node)
	switch {
	case h.opts.Tunnels == nil:
		why = refuse(http.StatusNotFound, "tunnel",
			"this cloudcore has no tunnels: modules.cloudStream is switched off")
	case s == nil || !h.opts.Tunnels.Expects(node, token):
		why = refuse(http.StatusMisdirectedRequest, "tunnel",
			"this cloudcore has not asked node %s for that tunnel", node)
	case h.opts.Gate != nil:
		if err := h.opts.Gate.Check(node, r.TLS.PeerCertificates[0]); err != nil {
			why = refuse(http.StatusForbidden, "identity", "%v", err)
		}
	}
	if why != nil {
		h.metrics.refused.WithLabelValues(why.cause).Inc()
		h.refused.logRefusal(r.RemoteAddr, node, why)
		http.Error(w, why.text, why.status)
		return
	}
	conn, err := wire.AcceptTunnel(w, r)
	if err != nil {
		h.metrics.refused.WithLabelValues("upgrade").Inc()
		klog.V(2).InfoS("Tunnel refused", "remote", r.RemoteAddr, "node", node, "why", err)
		return
	}
	if !tunnels.run(func() {
		defer context.AfterFunc(s.ctx, func() { _ = conn.Close() })()
		h.opts.Tunnels.Serve(ctx, node, token, conn)
	}) {
		_ = conn.Close()
	}
}

// ServeStreams serves the stream tunnels of KubeEdge's nodes, which are connected here, until the context ends. The
// listener has no TLS yet; ServeStreams closes it.
func (h *Hub) ServeStreams(ctx context.Context, l net.Listener, config *tls.Config) error {
	return h.serveUpgrades(ctx, l, config, func(w http.ResponseWriter, r *http.Request, streams *group) {
		h.acceptStream(ctx, w, r, streams)
	})
}

// acceptStream turns a request of an identified node into its stream tunnel, or refuses it.
func (h *Hub) acceptStream(ctx context.Context, w http.ResponseWriter, r *http.Request, streams *group) {
	name := r.Header.Get(edgestream.HeaderNode)
	node, why := "", refuse(http.StatusNotFound, "path", "only %s is served here", edgestream.Path)
	if r.URL.Path == edgestream.Path && r.TLS != nil {
		node, why = h.admit(http.Header{http.CanonicalHeaderKey(wire.HeaderNodeID): {name}}, r.TLS.PeerCertificates)
	}
	if why == nil {
		why = h.checkGate(r.Context(), node, r.TLS.PeerCertificates[0], sourceaddr.Parse(r.RemoteAddr))
	}
	s := h.session(node)
	switch {
	case why != nil:
	case h.opts.Tunnels == nil:
		why = refuse(http.StatusNotFound, "tunnel",
			"this cloudcore has no tunnels: modules.cloudStream is switched off")
	case s == nil:
		why = refuse(http.StatusServiceUnavailable, "tunnel", "node %s has no link to this cloudcore yet", node)
	case s.features != wire.Features{}:
		why = refuse(http.StatusConflict, "tunnel", "node %s is not KubeEdge's, and needs no stream tunnel", node)
	}
	if why != nil {
		h.refused.logRefusal(r.RemoteAddr, clip(name, 64), why)
		http.Error(w, why.text, why.status)
		return
	}
	conn, err := edgestream.Accept(w, r)
	if err != nil {
		h.metrics.refused.WithLabelValues("upgrade").Inc()
		klog.V(2).InfoS("Stream tunnel refused", "remote", r.RemoteAddr, "node", node, "why", err)
		return
	}
	if !streams.run(func() {
		defer context.AfterFunc(s.ctx, func() { _ = conn.Close() })()
		h.opts.Tunnels.ServeStream(ctx, node, conn)
	}) {
		_ = conn.Close()
	}
}

// remoteIP returns the IP address of a TCP or UDP address; the zero value if it has none.
func remoteIP(a net.Addr) netip.Addr {
	if of, ok := a.(interface{ AddrPort() netip.AddrPort }); ok {
		return of.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}
