// Package monitor serves cloudcore's probes and metrics, and tracks the state of its parts.
package monitor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	readTimeout = 10 * time.Second
	idleTimeout = time.Minute
	// shutdownTimeout is how long responses under way may take when cloudcore stops.
	shutdownTimeout = time.Second
)

// NewRegistry returns the metrics registry of the process; the parts add their metrics.
func NewRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

// Handler serves /metrics, /healthz and /readyz, and /debug/pprof if profiling is enabled. The parameters of probes are
// those of kube-apiserver: ?verbose lists all parts, and ?exclude=PART, which may be repeated, leaves a part out.
func Handler(p *Parts, registry *prometheus.Registry, profiling bool) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	for _, probe := range []struct {
		name string
		ask  func() []report
	}{{"healthz", p.alive}, {"readyz", p.ready}} {
		mux.HandleFunc("/"+probe.name, func(w http.ResponseWriter, r *http.Request) {
			query, list := r.URL.Query(), probe.ask()
			for i := range list {
				list[i].excluded = slices.Contains(query["exclude"], list[i].name)
			}
			text, well := verdict(probe.name, list, query.Has("verbose"))
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			if !well {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			_, _ = io.WriteString(w, text) // the client went away
		})
	}
	if profiling {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return readOnly(mux)
}

// readOnly allows only GET and HEAD.
func readOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "this port is read-only", http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(w, r)
	})
}

// Local returns an error if an address is reachable from other hosts.
func Local(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsLoopback() || strings.EqualFold(host, "localhost") {
		return nil
	}
	return fmt.Errorf("%s answers anyone who can reach it, without authentication", addr)
}

// Listen listens at an address of the configuration; an empty one returns nil.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	if address == "" {
		return nil, nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil,
			fmt.Errorf("commonConfig.monitorServer.bindAddress: %w; free the port, or name another one in the "+
				"configuration", err)
	}
	return l, nil
}

// Serve serves until ctx ends.
func Serve(ctx context.Context, l net.Listener, handler http.Handler) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if server.Shutdown(grace) != nil {
			_ = server.Close() // cut off clients that still read
		}
	})
	err := server.Serve(l)
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
