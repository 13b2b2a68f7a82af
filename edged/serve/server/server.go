// Package server is the node's two ports, made of one list of routes. The read-only one says what runs here, and how
// the agent is: it serves GET and HEAD only, gives out no secrets (pods name them, but do not hold them), and keeps
// pages of other sites from reading it through a browser on the device. The authenticated one, over TLS, is the
// kubelet's API: each request is admitted by a guard (package auth) that is asked about the route's verb and
// subresource of nodes.
package server

import (
	"context"
	"encoding/json"
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
	writeTimeout      = 30 * time.Second // of a piece
	answerTimeout     = 4 * time.Hour    // of the whole, as a kubelet's
	maxHeader         = 16 << 10         // of strangers
	knownHeader       = 1 << 20          // of clients of the cluster, as a kubelet's: the command of exec is in the URL
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
	// Reason says why the link is down.
	Reason string `json:"reason,omitempty"`
	// Tunnels counts the open tunnels to the kubelet API, including the one to KubeEdge's cloudcore. Streams counts the
	// connections through tunnels and through streams of the link itself. TunnelFailure is why the last tunnel could
	// not be opened; "" if it could, or if none was requested.
	Tunnels       int    `json:"tunnels,omitempty"`
	Streams       int    `json:"streams,omitempty"`
	TunnelFailure string `json:"tunnelFailure,omitempty"`
}

// Down reports whether there should be a link and is none. A condition says so only once that has lasted.
func (l *Link) Down() bool { return l != nil && !l.Connected }

// TunnelText describes the tunnels to the kubelet API; it is "" if there is none and none has failed.
func (l *Link) TunnelText() string {
	switch {
	case l == nil:
		return ""
	case l.Tunnels > 0:
		return fmt.Sprintf("open, with %d connections to the kubelet API", l.Streams)
	case l.Streams > 0:
		return fmt.Sprintf("%d connections to the kubelet API, as streams of the link", l.Streams)
	case l.TunnelFailure != "":
		return "not open, so that kubectl logs, exec and the like do not reach this node: " + l.TunnelFailure
	}
	return ""
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

// Options say what the ports serve.
type Options struct {
	Node Node
	// Registry holds the metrics, SLIs those of the health; nil makes some.
	Registry *prometheus.Registry
	SLIs     *SLIs
	// Routes are those of other parts.
	Routes []Route
	// Debugging: the authenticated port serves the routes that are for debugging, too.
	Debugging bool
}

// own are the routes of this package.
func (o *Options) own() []Route {
	s := &server{node: o.Node, slis: o.SLIs}
	if s.slis == nil {
		s.slis = NewSLIs()
	}
	f := func(h http.HandlerFunc) http.Handler { return h }
	ok := f(func(w http.ResponseWriter, _ *http.Request) { text(w, "ok") })
	return []Route{
		{Pattern: "/pods", Handler: f(s.pods), ReadOnly: true, Resource: "pods", OrProxy: true},
		{Pattern: "/pods/{$}", Handler: f(s.pods), ReadOnly: true, Resource: "pods", OrProxy: true},
		{Pattern: "/healthz", Handler: f(s.healthz), ReadOnly: true, Resource: "healthz", OrProxy: true},
		{Pattern: "/healthz/ping", Handler: ok, ReadOnly: true, Resource: "healthz", OrProxy: true},
		{Pattern: "/healthz/log", Handler: ok, ReadOnly: true, Resource: "healthz", OrProxy: true},
		{Pattern: "/healthz/syncloop", Handler: f(s.syncloop), ReadOnly: true, Resource: "healthz", OrProxy: true},
		{Pattern: "/events", Handler: f(s.events), ReadOnly: true},
		{Pattern: "/status", Handler: f(s.status), ReadOnly: true},
		{
			Pattern:  "/metrics",
			Handler:  promhttp.HandlerFor(o.Registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}),
			ReadOnly: true,
			Resource: "metrics",
		},
		{Pattern: "/metrics/slis", Handler: s.slis.handler(), ReadOnly: true, Resource: "metrics"},
	}
}

// New makes the handler of the read-only port.
func New(o Options) http.Handler {
	mux := http.NewServeMux()
	for _, r := range append(o.own(), o.Routes...) {
		if r.ReadOnly {
			mux.HandleFunc(r.Pattern, r.served)
		}
	}
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

// localName reports whether a host is an address or this machine's own name for itself.
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

type server struct {
	node Node
	slis *SLIs
}

func text(w http.ResponseWriter, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, s) // the client went away
}

// pods writes a v1.PodList, one pod after another: the list is never in memory as a whole.
func (s *server) pods(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	list(w, podList, s.node.Pods())
}

func (s *server) events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	list(w, `{"kind":"EventList","apiVersion":"v1","metadata":{},"items":[`, s.node.Events())
}

// podList begins a list of pods.
const podList = `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[`

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
	s.slis.count("ping", nil)
	s.slis.count("log", nil)
	s.slis.count("syncloop", err)
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
