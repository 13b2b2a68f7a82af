package server

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"strings"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/shares"
)

const (
	// maxConnections bounds those of a port, unless Secured allows more: anybody can open one.
	maxConnections = 256
	// maxFromSource bounds the unauthenticated ones of a source.
	maxFromSource = 64
)

// bounded bounds the connections of a port, so that no source can use them up for the others. The loopback has no
// share.
func bounded(l net.Listener, size int) net.Listener {
	return shares.New(shares.Options{
		Size: shares.Fixed(size), Share: maxFromSource, FreeLoopback: true,
	}).Listen(l)
}

func newServer(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           patiently(handler),
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		WriteTimeout:      answerTimeout,
		MaxHeaderBytes:    maxHeader,
	}
}

// Serve serves a handler at an address until ctx ends. Clients are not authenticated, so each source may have only a
// share of the open connections.
func Serve(ctx context.Context, address string, handler http.Handler) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return serveUntil(ctx, newServer(handler), bounded(l, maxConnections))
}

// serveUntil serves until ctx ends. Answers under way have a moment to end; streams end with ctx.
func serveUntil(ctx context.Context, srv *http.Server, l net.Listener) error {
	srv.BaseContext = func(net.Listener) context.Context { return ctx }
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		if err := srv.Shutdown(ctx); err != nil {
			_ = srv.Close()
		}
	})
	err := srv.Serve(l)
	if !stop() {
		<-ended
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// quiet logs what net/http reports at level 4 only: any port scan makes handshakes fail.
func quiet() *log.Logger { return log.New(quietWriter{}, "", 0) }

type quietWriter struct{}

func (quietWriter) Write(text []byte) (int, error) {
	klog.V(4).InfoS("Authenticated server", "says", strings.TrimSpace(string(text)))
	return len(text), nil
}
