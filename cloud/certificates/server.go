package certificates

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/certs"
)

// Nodes reports which names are taken; client-go's typed client implements it.
type Nodes interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*v1.Node, error)
}

const (
	readHeaderTimeout = 10 * time.Second
	requestTimeout    = 30 * time.Second
	maxHeader         = 16 << 10
	// clientAuth is x509.ExtKeyUsageClientAuth, as in the header ExtKeyUsages.
	clientAuth = 2
)

// Serve serves on a listener until ctx ends.
func (a *Authority) Serve(ctx context.Context, listener net.Listener, nodes Nodes) error {
	server := &http.Server{
		Handler:           a.Handler(nodes),
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      requestTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          klogWarnings(),
	}
	// Clients have a question or two. A connection that waited for the next one would keep its place among those of its
	// address that have no request yet, and many would keep the links of nodes behind the same NAT away.
	server.SetKeepAlivesEnabled(false)
	config := a.ServerTLS(tls.RequestClientCert)
	config.NextProtos = []string{"http/1.1"}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if server.Shutdown(grace) != nil {
			_ = server.Close() // cuts off connections that outlast the grace period
		}
	})
	err := server.Serve(tls.NewListener(listener, config))
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Handler returns the HTTPS endpoints (docs/wire.md, Certificates).
func (a *Authority) Handler(nodes Nodes) http.Handler {
	s := &endpoints{Authority: a, nodes: nodes}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ca.crt", s.caCert)
	mux.HandleFunc("GET /edge.crt", s.edgeCert)
	mux.HandleFunc("GET /node/{name}", s.node)
	limited := newLimiter(a.opts.RequestsPerSecond, a.opts.Burst, a.opts.Now).wrap(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Lets a device detect that its clock is off.
		w.Header().Set("Date", a.opts.Now().UTC().Format(http.TimeFormat))
		limited.ServeHTTP(w, r)
	})
}

type endpoints struct {
	*Authority
	nodes Nodes
}

func (s *endpoints) caCert(w http.ResponseWriter, _ *http.Request) {
	writeDER(w, s.CA().Raw)
}

// node reports whether a name is taken to anyone with a token. Without one, every name is free: keadm joins under a
// name only if it is, and sends no token. A name that is taken is then refused when the certificate is requested. If
// certificate requests do not protect names, callers without a token get the answer, too.
func (s *endpoints) node(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	if faults := validation.IsDNS1123Subdomain(name); len(faults) > 0 {
		http.Error(w, "not the name of a node: "+faults[0], http.StatusBadRequest)
		return
	}
	var taken bool
	var err error
	switch anonymous := r.Header.Get("Authorization") == ""; {
	case !anonymous:
		if _, err := s.tokenOf(r, name); err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		taken, err = s.nameTaken(r.Context(), name)
	case !s.opts.ProtectTaken:
		taken, err = s.nameTaken(r.Context(), name)
	}
	switch {
	case err != nil:
		klog.ErrorS(err, "Node not looked up", "node", name)
		http.Error(w, "the cloud cannot ask its API server now; try again", http.StatusInternalServerError)
	case taken:
		_, _ = io.WriteString(w, "Node found") // the client may be gone
	default:
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, "Node not found")
	}
}

func (s *endpoints) nameTaken(ctx context.Context, name string) (bool, error) {
	_, err := s.nodes.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// edgeCert issues a node's certificate: the first one for a token, later ones for the previous certificate.
func (s *endpoints) edgeCert(w http.ResponseWriter, r *http.Request) {
	node := r.Header.Get("NodeName")
	der, err := s.issue(r, node)
	if err != nil {
		status := http.StatusInternalServerError
		var refusal *refusal
		if errors.As(err, &refusal) {
			status = refusal.status
		} else {
			klog.ErrorS(err, "Certificate not signed", "node", clipped(node), "from", r.RemoteAddr)
		}
		klog.V(1).InfoS("Certificate refused", "node", clipped(node), "from", r.RemoteAddr, "why", err.Error())
		http.Error(w, err.Error(), status)
		return
	}
	klog.InfoS("Certificate issued", "node", node, "from", r.RemoteAddr)
	writeDER(w, der)
}

// refusal is an error caused by the caller.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

func refuse(status int, format string, args ...any) error {
	return &refusal{status, fmt.Sprintf(format, args...)}
}

func (s *endpoints) issue(r *http.Request, node string) ([]byte, error) {
	if faults := validation.IsDNS1123Subdomain(node); len(faults) > 0 {
		return nil, refuse(http.StatusBadRequest, "header NodeName %q is not the name of a node: %s", clipped(node),
			faults[0])
	}
	granted, err := s.authenticate(r, node)
	if err != nil {
		return nil, err
	}
	if err := checkUsages(r.Header.Get("ExtKeyUsages")); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, certs.MaxRequest+1))
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "the certificate request was cut off: %v", err)
	}
	if len(body) > certs.MaxRequest {
		return nil, refuse(http.StatusRequestEntityTooLarge, "the certificate request has more than %d KiB",
			certs.MaxRequest>>10)
	}
	req, err := certs.ParseRequest(body)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "failed to sign certs for edgenode %s, err: %v", node, err)
	}
	// Edgecores before KubeEdge 1.16 request the shared legacy name; they get their own.
	if of, err := certs.NodeOf(req.Subject); !certs.IsLegacy(req.Subject) && (err != nil || of != node) {
		return nil, refuse(http.StatusForbidden,
			"failed to sign certs for edgenode %s, err: the request is for %q; want O=%s, CN=%s", node,
			clipped(req.Subject.String()), certs.Organization, certs.CommonName(node))
	}
	s.awaitNotBefore(r.Context(), node, granted)
	der, err := s.signNode(node, req, granted)
	var refused *refusal
	if errors.As(err, &refused) {
		return nil, refused
	}
	if err != nil {
		return nil, fmt.Errorf("failed to sign certs for edgenode %s, err: %w", node, err)
	}
	return der, nil
}

// grant holds what a certificate is issued with.
type grant struct {
	// holder is the device; see certs.NewHolder.
	holder string
	// revoked is the node's last revocation known to the token.
	revoked time.Time
}

// authenticate identifies the caller: by its certificate if there is one, else by the token.
func (s *endpoints) authenticate(r *http.Request, node string) (grant, error) {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		cert := r.TLS.PeerCertificates[0]
		if err := s.authenticateCertificate(cert, node); err != nil {
			return grant{}, err
		}
		if holder := certs.HolderOf(cert); holder != "" {
			return grant{holder: holder}, nil
		}
		return s.newHolder(false)
	}
	claims, err := s.tokenOf(r, node)
	if err != nil {
		return grant{}, err
	}
	bound := claims.Node != ""
	if !bound {
		if err := s.checkTaken(r.Context(), node); err != nil {
			return grant{}, err
		}
	}
	g, err := s.newHolder(bound)
	if bound && claims.Since != 0 {
		g.revoked = time.Unix(claims.Since, 0)
	}
	return g, err
}

// tokenOf returns what the token of a request says, if it is valid for a node.
func (s *endpoints) tokenOf(r *http.Request, node string) (claims, error) {
	const failure = "token validation failure, "
	header := r.Header.Get("Authorization")
	if header == "" {
		return claims{}, refuse(http.StatusUnauthorized, failure+"token is empty")
	}
	scheme, bearer, ok := strings.Cut(header, " ")
	if !ok || bearer == "" || strings.Contains(bearer, " ") {
		return claims{}, refuse(http.StatusUnauthorized, failure+"token cannot be split")
	}
	if !strings.EqualFold(scheme, "Bearer") {
		return claims{}, refuse(http.StatusUnauthorized, failure+"want the scheme Bearer")
	}
	c, err := s.verifyToken(bearer, node)
	if err != nil {
		return claims{}, refuse(http.StatusUnauthorized, failure+"err: %v", err)
	}
	return c, nil
}

func (s *endpoints) newHolder(bound bool) (g grant, err error) {
	g.holder, err = certs.NewHolder(bound, s.opts.Now())
	return g, err
}

func (s *endpoints) authenticateCertificate(cert *x509.Certificate, node string) error {
	err := certs.CheckNode(cert, node, s.opts.AllowLegacy)
	if err == nil {
		if err = certs.VerifyClient(cert, s.Pool(), s.opts.Now()); err != nil {
			now := s.opts.Now().UTC().Format(time.RFC3339)
			err = fmt.Errorf("%w (the cloud's clock says %s); `edgecore join` with a new token renews it", err, now)
		} else {
			err = s.Check(node, cert)
		}
	}
	if err != nil {
		return refuse(http.StatusUnauthorized, "failed to verify the certificate for edgenode: %s, err: %v", node, err)
	}
	return nil
}

// checkTaken refuses a general token for a name that is taken, or that was revoked, since its device may still hold
// such a token.
func (s *endpoints) checkTaken(ctx context.Context, node string) error {
	if _, revoked := s.revocations()[node]; revoked {
		return refuse(http.StatusConflict,
			"node %s was revoked: use a token for that node (`cloudcore gettoken --node %s`), or another name", node,
			node)
	}
	if !s.opts.ProtectTaken {
		return nil
	}
	taken, err := s.nameTaken(ctx, node)
	if err != nil {
		return fmt.Errorf("node %s: %w", node, err)
	}
	if taken {
		return refuse(http.StatusConflict,
			"the name %s is taken: use a token for that node (`cloudcore gettoken --node %s`), or another name", node,
			node)
	}
	return nil
}

// checkUsages refuses usages that would not be granted: a node is a client.
func checkUsages(header string) error {
	if header == "" {
		return nil
	}
	var usages []int
	if err := json.Unmarshal([]byte(header), &usages); err != nil {
		return refuse(http.StatusBadRequest, "header ExtKeyUsages is not a list of numbers in JSON")
	}
	if slices.ContainsFunc(usages, func(u int) bool { return u != clientAuth }) {
		return refuse(http.StatusForbidden, "header ExtKeyUsages: a node's certificate is for a client alone ([%d])",
			clientAuth)
	}
	return nil
}

func writeDER(w http.ResponseWriter, der []byte) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(len(der)))
	_, _ = w.Write(der) // the client may be gone
}

func clipped(s string) string { return s[:min(len(s), 100)] }
