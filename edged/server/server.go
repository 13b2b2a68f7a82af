// Package server is the node's read-only port: what runs here, and how the agent is. It serves GET and HEAD
// only, gives out no secrets (pods name them, but do not hold them), and keeps pages of other sites from
// reading it through a browser on the device.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/health"
)

// Limits of the server: its clients are on the device.
const (
	readHeaderTimeout = 5 * time.Second
	idleTimeout       = 30 * time.Second
	writeTimeout      = 30 * time.Second
	maxHeader         = 16 << 10
	shutdownTimeout   = 3 * time.Second
)

// Info is what `edgecore status` shows of the agent.
type Info struct {
	NodeName       string             `json:"nodeName"`
	Version        string             `json:"version"`
	Started        time.Time          `json:"started"`
	Runtime        string             `json:"runtime,omitempty"`
	RuntimeVersion string             `json:"runtimeVersion,omitempty"`
	Endpoint       string             `json:"containerRuntimeEndpoint"`
	Store          string             `json:"store"`
	StaticPodPath  string             `json:"staticPodPath"`
	PodLogsDir     string             `json:"podLogsDir"`
	Conditions     []health.Condition `json:"conditions"`
	// Link is nil where this device has joined no cloud.
	Link *Link `json:"link,omitempty"`
}

// Link is the way to the cloud.
type Link struct {
	Connected bool `json:"connected"`
	// Since is when the link came up, or when it was lost; zero before the first of either.
	Since    time.Time `json:"since"`
	Protocol string    `json:"protocol,omitempty"`
	Server   string    `json:"server,omitempty"`
	// Reason says why there is no link.
	Reason string `json:"reason,omitempty"`
}

// Node is what the server asks.
type Node interface {
	// Pods returns the pods with their newest status, in a fixed order.
	Pods() []*v1.Pod
	Events() []v1.Event
	Info(ctx context.Context) Info
	// SyncLoop returns nil when pods are being kept in sync.
	SyncLoop() error
}

// New makes the handler. registry holds the metrics.
func New(node Node, registry *prometheus.Registry) http.Handler {
	s := &server{node: node}
	mux := http.NewServeMux()
	mux.HandleFunc("/pods", s.pods)
	mux.HandleFunc("/healthz", s.healthz)
	mux.HandleFunc("/healthz/ping", func(w http.ResponseWriter, _ *http.Request) { text(w, "ok") })
	mux.HandleFunc("/healthz/log", func(w http.ResponseWriter, _ *http.Request) { text(w, "ok") })
	mux.HandleFunc("/healthz/syncloop", s.syncloop)
	mux.HandleFunc("/events", s.events)
	mux.HandleFunc("/status", s.status)
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	return guard(mux)
}

// guard lets through what may be read: GET and HEAD, and of names in the Host header only those that a page
// of another site cannot have pointed here.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "this port is read-only", http.StatusMethodNotAllowed)
			return
		}
		if !localName(r.Host) {
			http.Error(w, fmt.Sprintf("host %q: ask by address or as localhost", r.Host), http.StatusForbidden)
			return
		}
		w.Header().Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(w, r)
	})
}

// localName tells whether a host is an address or this machine's own name for itself.
func localName(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if host == "localhost" || host == "" {
		return true
	}
	_, err := netip.ParseAddr(host)
	return err == nil
}

type server struct{ node Node }

func text(w http.ResponseWriter, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, s) // the client went away
}

// pods writes a v1.PodList, one pod after another: the list is never in memory as a whole.
func (s *server) pods(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	list(w, `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[`, s.node.Pods())
}

func (s *server) events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	list(w, `{"kind":"EventList","apiVersion":"v1","metadata":{},"items":[`, s.node.Events())
}

func list[T any](w http.ResponseWriter, head string, items []T) {
	write := func(data []byte) bool {
		_, err := w.Write(data)
		return err == nil
	}
	if !write([]byte(head)) {
		return
	}
	for i, item := range items {
		data, err := json.Marshal(item)
		if err != nil {
			klog.ErrorS(err, "Object left out of an answer")
			continue
		}
		if i > 0 && !write([]byte{','}) || !write(data) {
			return
		}
	}
	write([]byte("]}\n"))
}

func (s *server) status(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(s.node.Info(r.Context())); err != nil {
		klog.V(4).InfoS("Answer not written", "err", err)
	}
}

func (s *server) syncloop(w http.ResponseWriter, _ *http.Request) {
	if err := s.node.SyncLoop(); err != nil {
		http.Error(w, "sync loop: "+err.Error(), http.StatusInternalServerError)
		return
	}
	text(w, "ok")
}

// healthz answers "ok" or what is wrong; with ?verbose each part has its line.
func (s *server) healthz(w http.ResponseWriter, r *http.Request) {
	err := s.node.SyncLoop()
	_, verbose := r.URL.Query()["verbose"]
	if !verbose && err == nil {
		text(w, "ok")
		return
	}
	var b strings.Builder
	b.WriteString("[+]ping ok\n[+]log ok\n")
	if err != nil {
		fmt.Fprintf(&b, "[-]syncloop failed: %v\nhealthz check failed\n", err)
		http.Error(w, b.String(), http.StatusInternalServerError)
		return
	}
	b.WriteString("[+]syncloop ok\nhealthz check passed\n")
	text(w, b.String())
}

// Serve serves a handler at an address until ctx ends.
func Serve(ctx context.Context, address string, handler http.Handler) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, WriteTimeout: writeTimeout, MaxHeaderBytes: maxHeader}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		if err := srv.Shutdown(ctx); err != nil {
			_ = srv.Close()
		}
	})
	err = srv.Serve(l)
	if !stop() {
		<-ended
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
