package cloudhub

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/sourceaddr"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Names in nodes' certificates (docs/wire.md, Certificates).
const (
	nodePrefix = "system:node:"
	nodesGroup = "system:nodes"
)

// refusal is why a connection is refused, in words for the edge's log.
type refusal struct {
	status int
	cause  string // for the metrics
	text   string
}

func (r *refusal) Error() string { return r.text }

func refuse(status int, cause, format string, args ...any) *refusal {
	return &refusal{status, cause, fmt.Sprintf(format, args...)}
}

// identify returns the node that a connection belongs to. The certificate has been verified against the CA.
func identify(header http.Header, peer []*x509.Certificate, legacy bool) (string, *refusal) {
	node := header.Get(wire.HeaderNodeID)
	switch {
	case node == "":
		return "", refuse(http.StatusBadRequest, "header", "the header node_id is missing: it names the node")
	case len(validation.IsDNS1123Subdomain(node)) > 0:
		return "", refuse(http.StatusBadRequest, "header",
			"%q is not a node name: want a lower-case DNS name", clip(node, 64))
	}
	switch use := header.Get(wire.HeaderUse); use {
	case "", wire.UseMessages, wire.UseTunnel, wire.UseAPI:
	default:
		return "", refuse(http.StatusBadRequest, "header",
			"the header ConnectionUse is %q: only %q, %q and %q are served",
			clip(use, 16), wire.UseMessages, wire.UseTunnel, wire.UseAPI)
	}
	if len(peer) == 0 {
		return "", refuse(http.StatusForbidden, "certificate", "node %s showed no certificate: run edgecore join", node)
	}
	subject := peer[0].Subject
	if subject.CommonName == nodePrefix+node && slices.Contains(subject.Organization, nodesGroup) {
		return node, nil
	}
	if certs.IsLegacy(subject) {
		if legacy {
			return node, nil
		}
		return "", refuse(http.StatusForbidden, "certificate", "the certificate is the one that all edges up to "+
			"v1.15 share, and names no node: apply for one for %s (run edgecore join on it, or keadm join), or let "+
			"cloudcore accept it with modules.cloudHub.legacyCertificates", node)
	}
	return "", refuse(http.StatusForbidden, "certificate", "the certificate is for %q and not for node %s: a node "+
		"may speak for itself only; run edgecore join on it to get its own",
		clip(strings.TrimPrefix(subject.CommonName, nodePrefix), 64), node)
}

// admit returns the node that a connection belongs to, if there is room for it.
func (h *Hub) admit(header http.Header, peer []*x509.Certificate) (string, *refusal) {
	node, why := identify(header, peer, h.opts.LegacyCertificates)
	if why == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		switch {
		case h.closed:
			why = refuse(http.StatusServiceUnavailable, "stopping", "cloudcore stops")
		case h.sessions[node] == nil && len(h.sessions) >= h.limit.nodes:
			why = refuse(http.StatusServiceUnavailable, "limit", "%v", h.limit.full())
		}
	}
	if why != nil {
		h.metrics.refused.WithLabelValues(why.cause).Inc()
		return "", why
	}
	return node, nil
}

// Gate decides whether a certificate that the CA signed for a node may speak for that node.
type Gate interface {
	// Admit is called before a connection from an address becomes a session. It may block until ctx ends. Its error is
	// sent to the node; ErrTryLater does not mean that the certificate is refused.
	Admit(ctx context.Context, node string, cert *x509.Certificate, from netip.Prefix) error
	// Check is called for a session at its start and by Hub.Recheck. It answers from memory; its error ends the
	// session.
	Check(node string, cert *x509.Certificate) error
}

// ErrTryLater means that the certificate cannot be judged now.
var ErrTryLater = errors.New("try again later")

// gatePatience is the timeout for a gate to admit a connection.
const gatePatience = 10 * time.Second

// checkGate asks the gate about a connection that admit let in.
func (h *Hub) checkGate(ctx context.Context, node string, cert *x509.Certificate, from netip.Prefix) *refusal {
	if h.opts.Gate == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, gatePatience)
	defer cancel()
	err := h.opts.Gate.Admit(ctx, node, cert, from)
	var why *refusal
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrTryLater):
		why = refuse(http.StatusServiceUnavailable, "unknown", "%v", err)
	default:
		why = refuse(http.StatusForbidden, "identity", "%v", err)
	}
	h.metrics.refused.WithLabelValues(why.cause).Inc()
	return why
}

// identified is a connection and the certificate that it began with. The TLS connection below it keeps the certificate
// as well, so it costs only the pointer.
type identified struct {
	wire.Conn
	cert     *x509.Certificate
	instance wire.Instance
}

// Recheck asks the gate about all sessions and connections for the API, and ends those that it now refuses. It does not
// block.
func (h *Hub) Recheck() {
	for _, s := range h.allSessions() {
		s.recheck()
	}
	for _, s := range h.allAPIs() {
		h.recheckAPI(s)
	}
}

// RecheckNode does the same for one node.
func (h *Hub) RecheckNode(node string) {
	if s := h.session(node); s != nil {
		s.recheck()
	}
	if s := h.api(node); s != nil {
		h.recheckAPI(s)
	}
}

// Certificate returns the certificate that a node's session began with; nil without a session over TLS.
func (h *Hub) Certificate(node string) *x509.Certificate {
	if s := h.session(node); s != nil {
		if conn, ok := s.conn.(identified); ok {
			return conn.cert
		}
	}
	return nil
}

// Source returns the source of a node's session; the zero Prefix without a session.
func (h *Hub) Source(node string) netip.Prefix {
	if s := h.session(node); s != nil {
		return sourceaddr.Of(s.conn.RemoteAddr())
	}
	return netip.Prefix{}
}

// recheck also runs after the session is registered: a change since Admit reached only the sessions registered then.
func (s *session) recheck() {
	conn, ok := s.conn.(identified)
	if !ok || s.hub.opts.Gate == nil {
		return
	}
	if err := s.hub.opts.Gate.Check(s.node, conn.cert); err != nil {
		s.closeLink(wire.ClosePolicy, err.Error())
	}
}

// TLSConfig returns the configuration of the servers for edges: it requires a certificate of the CA (docs/wire.md,
// WebSocket).
func TLSConfig(certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error), ca *x509.CertPool) *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: certificate,
		ClientAuth:     tls.RequireAndVerifyClientCert,
		ClientCAs:      ca,
		CipherSuites: []uint16{
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
		},
		NextProtos: []string{"http/1.1"},
	}
}

// Refused nodes reconnect repeatedly: how often each cause is logged is limited.
const (
	refusedPeriod = 10 * time.Minute
	refusedKept   = 1000
)

// refusedLog remembers which refusals were logged.
type refusedLog struct {
	mu     sync.Mutex
	logged map[string]time.Time
}

func (l *refusedLog) logRefusal(remote, node string, why *refusal) {
	if l.shouldLog(node+" "+why.cause, time.Now()) {
		klog.InfoS("Connection refused", "remote", remote, "node", node, "why", why.text)
	}
}

func (l *refusedLog) shouldLog(what string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.logged[what]) < refusedPeriod {
		return false
	}
	if l.logged == nil || len(l.logged) >= refusedKept {
		l.logged = map[string]time.Time{}
	}
	l.logged[what] = now
	return true
}
