package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/auth"
	"github.com/edgecore-io/edgecore/pkg/shares"
)

// Guard decides who may ask; see package auth. Its errors are *auth.Refusal.
type Guard interface {
	Check(r *http.Request, verb string, subresources ...string) error
}

// NewSecure makes the handler of the authenticated port: each request is admitted by guard, or gets nothing, not even
// whether there is what it asks for.
func NewSecure(o Options, guard Guard) http.Handler {
	mux := http.NewServeMux()
	for _, r := range append(o.own(), o.Routes...) {
		switch {
		case r.LocalOnly:
		case r.Debugging && !o.Debugging:
			mux.HandleFunc(r.Pattern, guarded(guard, r, func(w http.ResponseWriter, _ *http.Request) {
				http.Error(w, "switched off on this node (enableDebuggingHandlers)", http.StatusMethodNotAllowed)
			}))
		default:
			mux.HandleFunc(r.Pattern, guarded(guard, r, r.served))
		}
	}
	mux.HandleFunc("/", guarded(guard, Route{}, http.NotFound))
	return mux
}

func guarded(guard Guard, r Route, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		err := guard.Check(req, r.verb(req.Method), r.resources()...)
		if err == nil {
			admit(req.Context())
			next(w, req)
			return
		}
		code := http.StatusInternalServerError
		if refusal, ok := errors.AsType[*auth.Refusal](err); ok {
			code = refusal.Code
		}
		w.Header().Set("Connection", "close") // an unauthenticated client keeps no place
		klog.V(2).InfoS("Request refused", "from", req.RemoteAddr, "method", req.Method, "path", req.URL.Path,
			"code", code, "why", err)
		http.Error(w, err.Error(), code)
	}
}

// connKey is the key of a request's connection in its context.
type connKey struct{}

// withConn is the ConnContext of a server.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// admit notes that the client of a request is authenticated and authorized: its connection keeps its place.
func admit(ctx context.Context) {
	c, _ := ctx.Value(connKey{}).(net.Conn)
	if own := shares.Of(c); own != nil {
		own.Admit()
	}
}

// TLSOptions are what the configuration says about TLS.
type TLSOptions struct {
	// MinVersion is a name of the kubelet's, "VersionTLS12"; "" is that.
	MinVersion string
	// CipherSuites are names of Go's; none are its own choice. TLS 1.3 has its own always.
	CipherSuites []string
}

// Versions are the names that MinVersion may have.
func Versions() []string { return []string{"VersionTLS12", "VersionTLS13"} }

// Suites are the names that CipherSuites may have.
func Suites() []string {
	var names []string
	for _, s := range tls.CipherSuites() {
		names = append(names, s.Name)
	}
	return names
}

// TLS makes the configuration of the authenticated port.
func TLS(o TLSOptions, certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificate}
	switch o.MinVersion {
	case "", "VersionTLS12":
	case "VersionTLS13":
		c.MinVersion = tls.VersionTLS13
	default:
		return nil, fmt.Errorf("TLS version %q: want one of %v", o.MinVersion, Versions())
	}
	for _, name := range o.CipherSuites {
		id, ok := suite(name)
		if !ok {
			return nil, fmt.Errorf("TLS cipher suite %q: want one of %v", name, Suites())
		}
		c.CipherSuites = append(c.CipherSuites, id)
	}
	return c, nil
}

func suite(name string) (uint16, bool) {
	for _, s := range tls.CipherSuites() {
		if s.Name == name {
			return s.ID, true
		}
	}
	return 0, false
}
