package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/retry"
)

// Secured is what the authenticated port serves. All fields but Connections are required.
type Secured struct {
	Handler http.Handler
	TLS     *tls.Config
	// Known reports whether the cluster has signed a client's certificate, as far as this is known without asking. The
	// head of such a client's requests may have 1 MiB, that of others 16 KiB. It admits nobody: Handler does.
	Known func(chain []*x509.Certificate) bool
	// Connections is how many may be open; at least 256.
	Connections int
}

// Serve serves the authenticated port at an address until ctx ends.
func (s *Secured) Serve(ctx context.Context, address string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return s.serve(ctx, l)
}

// ServeLocal serves what the authenticated port does to connections of this process, until ctx ends.
func (s *Secured) ServeLocal(ctx context.Context, l *Local) error { return s.serve(ctx, l) }

// serve has one server for the clients that the cluster knows, and one for strangers. The limit of a request's head is
// that of its server, so the handshake comes first.
func (s *Secured) serve(ctx context.Context, inner net.Listener) error {
	l := bounded(inner, max(s.Connections, maxConnections))
	known, strangers := NewLocal(), NewLocal()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer func() { _ = errors.Join(l.Close(), known.Close(), strangers.Close()) }() // which end all below
	for queue, head := range map[*Local]int{known: knownHeader, strangers: maxHeader} {
		srv := newServer(s.Handler)
		srv.ErrorLog, srv.ConnContext, srv.MaxHeaderBytes = quiet(), withConn, head
		wg.Go(func() { _ = serveUntil(ctx, srv, queue) }) // it ends with ctx, or with its listener
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	config := s.TLS.Clone()
	// Whose certificate it is, and whether it is any good, is for the guard to find out: the CAs change while the port
	// is open.
	config.ClientAuth = tls.RequestClientCert
	config.NextProtos = []string{"http/1.1"} // upgraded connections are of HTTP/1.1, and the others are few
	pause := retry.NewSpread(5*time.Millisecond, time.Second)
	for {
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil: // such as too many open files
			klog.V(2).InfoS("Connection to the kubelet API not accepted; trying again", "err", err)
			retry.Sleep(ctx, pause.Next())
			continue
		}
		pause = retry.NewSpread(5*time.Millisecond, time.Second)
		wg.Go(func() {
			conn, ok := s.handshake(ctx, c, config)
			queue := strangers
			if chain := conn.ConnectionState().PeerCertificates; ok && len(chain) > 0 && s.Known(chain) {
				queue = known
			}
			if !ok || !queue.enqueue(ctx, conn) {
				_ = c.Close()
			}
		})
	}
}

// handshake makes a connection a TLS connection; ok is false if the client has not done its part in time.
func (s *Secured) handshake(ctx context.Context, c net.Conn, config *tls.Config) (conn *tls.Conn, ok bool) {
	conn = tls.Server(c, config)
	ctx, cancel := context.WithTimeout(ctx, readHeaderTimeout)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		klog.V(4).InfoS("TLS handshake of a client failed", "from", c.RemoteAddr(), "err", err) // as by any port scan
		return conn, false
	}
	return conn, true
}
