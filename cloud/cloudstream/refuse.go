package cloudstream

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/shares"
	"github.com/edgecore-io/edgecore/pkg/sourceaddr"
)

const (
	// refuseTimeout is how long a caller may take to read why it is refused; refusalsMax is how many may do so at a
	// time, refusalsShare how many of one source.
	refuseTimeout = 10 * time.Second
	refusalsMax   = 256
	refusalsShare = 128
)

// unsigned is why a caller that verifies certificates does not reach a node that runs KubeEdge's edgecore.
const unsigned = "cloudcore's own for nodes that run KubeEdge's edgecore: the caller must not verify it"

// refuser answers callers over HTTPS with the reason why they do not reach a node. Its certificates are signed by no
// authority. Callers that verify the node's certificate read the reason in their error of TLS: it is the name of the
// certificate's issuer, which Go's crypto/x509 mentions.
type refuser struct {
	address netip.Addr
	key     *ecdsa.PrivateKey
	// proxied is the configuration for ports of nodes that run KubeEdge's edgecore: it asks callers for a certificate,
	// and offers no HTTP/2, which has no upgrades.
	proxied *tls.Config
	places  *shares.Budget[netip.Prefix]
}

func newRefuser(address netip.Addr) (*refuser, error) {
	key, err := certs.NewKey()
	if err != nil {
		return nil, err
	}
	r := &refuser{address: address, key: key, places: shares.NewBudget[netip.Prefix](refusalsMax, refusalsShare)}
	if r.proxied, err = r.config(unsigned); err != nil {
		return nil, err
	}
	r.proxied.NextProtos, r.proxied.ClientAuth = []string{"http/1.1"}, tls.RequestClientCert
	return r, nil
}

// config returns the TLS configuration of a server whose certificate's issuer is named by a text.
func (r *refuser) config(text string) (*tls.Config, error) {
	issuer, err := r.template(strings.ToValidUTF8(text, "?"))
	if err != nil {
		return nil, err
	}
	leaf, err := r.template("cloudcore")
	if err != nil {
		return nil, err
	}
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	leaf.IPAddresses = []net.IP{r.address.AsSlice()}
	var chain [][]byte
	for _, template := range []*x509.Certificate{leaf, issuer} {
		der, err := x509.CreateCertificate(rand.Reader, template, issuer, r.key.Public(), r.key)
		if err != nil {
			return nil, err
		}
		chain = append(chain, der)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{{Certificate: chain, PrivateKey: r.key}},
		NextProtos:   []string{"h2", "http/1.1"},
	}, nil
}

// template is a certificate's. It may not sign others, so callers find no chain from the leaf to the issuer.
func (r *refuser) template(name string) (*x509.Certificate, error) {
	serial, err := certs.NewSerial()
	if err != nil {
		return nil, err
	}
	return &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-24 * time.Hour),
		NotAfter:              time.Now().AddDate(10, 0, 0),
		BasicConstraintsValid: true,
	}, nil
}

// refusedStatus is the status of its answers: of 503 kube-apiserver does not pass on the text.
const refusedStatus = http.StatusInternalServerError

// refuse answers the requests of a connection with a text, and closes it.
func (r *refuser) refuse(ctx context.Context, c net.Conn, text string) {
	defer c.Close()
	from := sourceaddr.Of(c.RemoteAddr())
	if !r.places.Take(from, 1) {
		return
	}
	defer r.places.Return(from, 1)
	config, err := r.config(text)
	if err != nil {
		klog.ErrorS(err, "No certificate to refuse a connection with", "reason", text)
		return
	}
	_ = c.SetDeadline(time.Now().Add(refuseTimeout)) // fails only on a closed connection
	ctx, cancel := context.WithTimeout(ctx, refuseTimeout)
	defer cancel()
	serve(ctx, tls.Server(c, config), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		http.Error(w, text, refusedStatus)
	}))
}

// serve serves the requests of a connection, until it is closed or ctx ends.
func serve(ctx context.Context, c net.Conn, handler http.Handler) {
	l := &oneConn{Conn: c, done: make(chan struct{})}
	ended := make(chan struct{})
	end := sync.OnceFunc(func() { close(ended) })
	var taken atomic.Bool // from the HTTP server, by a handler
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			handler.ServeHTTP(w, req)
			if taken.Load() {
				end()
			}
		}),
		ReadHeaderTimeout: refuseTimeout,
		IdleTimeout:       idleTimeout,
		ErrorLog:          log.New(io.Discard, "", 0),
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateHijacked:
				taken.Store(true)
				l.close()
			case http.StateClosed:
				l.close()
				end()
			}
		},
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close(); _ = c.Close() })()
	_ = server.Serve(l) // until the connection is closed or taken
	if l.accepted.Load() {
		<-ended
	}
}

// oneConn is a listener with one connection.
type oneConn struct {
	net.Conn
	once     sync.Once
	closed   sync.Once
	done     chan struct{}
	accepted atomic.Bool
}

// Accept implements net.Listener.
func (l *oneConn) Accept() (c net.Conn, err error) {
	l.once.Do(func() { c = l.Conn })
	if c != nil {
		l.accepted.Store(true)
		return c, nil
	}
	<-l.done
	return nil, net.ErrClosed
}

func (l *oneConn) close() { l.closed.Do(func() { close(l.done) }) }

// Close implements net.Listener.
func (l *oneConn) Close() error {
	l.close()
	return nil
}

// Addr implements net.Listener.
func (l *oneConn) Addr() net.Addr { return l.Conn.LocalAddr() }
