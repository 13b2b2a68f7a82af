// Package metaserver serves the Kubernetes API on the device. Pods that use it find it in place of kube-apiserver: in
// their environment, and with its CA in their ca.crt. Each request goes to cloudcore over a stream of one connection,
// and from there to kube-apiserver, with the credentials that the pod sent and no others.
//
// The parts are in packages of their own: this one makes them, and runs them as a module of the bus. It promises that
// the endpoint stays open whatever happens to the link; without one, each request is answered at once with 503.
package metaserver

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/metaserver/address"
	"github.com/edgecore-io/edgecore/metaserver/devicecert"
	"github.com/edgecore-io/edgecore/metaserver/endpoint"
	"github.com/edgecore-io/edgecore/metaserver/forward"
	"github.com/edgecore-io/edgecore/metaserver/identity"
)

// Name is the name of the module, and of its group.
const Name = "metaserver"

// TokenSink takes the tokens of the device's pods.
type TokenSink interface {
	// Stored takes a TokenRequest with its token, as it is in a row of the store now. noAudience: it was requested
	// without audiences, so it is for kube-apiserver.
	Stored(row string, tokenRequest []byte, noAudience bool)
	// Removed takes the end of a row.
	Removed(row string)
}

// Tokens are the tokens that the device got for its pods.
type Tokens interface {
	// Follow hands all tokens to sink, then each change, until ctx ends. It returns an error if it cannot go on.
	Follow(ctx context.Context, sink TokenSink) error
}

// Options make a Server. All but Domain are required.
type Options struct {
	// Node is the name of the node.
	Node string
	// Dir is where the device's CA is.
	Dir string
	// Server is where programs of the device find the endpoint, with its port. PodAddresses are where pods find it:
	// these addresses are put on the interface lo.
	Server       netip.AddrPort
	PodAddresses []netip.AddrPort
	// ClusterIPs returns those of the Service default/kubernetes, and Domain is that of the cluster: names of the
	// endpoint. ClusterIPs is called every few seconds while clients connect.
	ClusterIPs func() []netip.Addr
	Domain     string
	Streams    forward.Streams
	Tokens     Tokens
	Pods       endpoint.Pods
	// Now is the wall clock.
	Now func() time.Time
	// Fault is called with what keeps the endpoint from being served, and with nil when nothing does any more. object
	// is an address, or the CA.
	Fault func(object string, err error)
}

// Server is the module. Make it with New. It is also a prometheus.Collector.
type Server struct {
	opts        Options
	certificate *devicecert.Certificate
	tokens      *identity.Table
	forwarder   *forward.Forwarder
	endpoint    *endpoint.Endpoint

	mu sync.Mutex
	// served are the addresses that are listened on.
	served []string
	// clusterIPs are those that ClusterIPs returned at looked.
	clusterIPs []netip.Addr
	looked     time.Time
}

// clusterIPsAge is how long the ClusterIPs are taken for unchanged.
const clusterIPsAge = 10 * time.Second

// New makes the module. It reads the device's CA, or makes it.
func New(opts Options) (*Server, error) {
	s := &Server{opts: opts, tokens: identity.NewTable(time.Now), forwarder: forward.New(opts.Streams)}
	var err error
	s.certificate, err = devicecert.Open(devicecert.Options{
		Dir:   opts.Dir,
		Node:  opts.Node,
		Names: s.names,
		Now:   opts.Now,
	})
	if s.certificate == nil {
		return nil, err
	}
	opts.Fault("CA", err)
	s.endpoint = endpoint.New(endpoint.Options{
		Listen:      s.addresses(),
		Certificate: s.certificate.Get,
		Tokens:      s.tokens,
		Pods:        opts.Pods,
		Forward:     s.forwarder,
		Listening:   s.listening,
	})
	return s, nil
}

// names are the names of the endpoint as they are now.
func (s *Server) names() devicecert.Names {
	var addresses []netip.Addr
	for _, a := range s.addresses() {
		addresses = append(addresses, a.Addr())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); s.looked.IsZero() || now.Sub(s.looked) >= clusterIPsAge {
		s.clusterIPs, s.looked = s.opts.ClusterIPs(), now
	}
	return devicecert.NamesOf(addresses, s.clusterIPs, s.opts.Domain)
}

// addresses are all addresses of the endpoint.
func (s *Server) addresses() []netip.AddrPort {
	return append([]netip.AddrPort{s.opts.Server}, s.opts.PodAddresses...)
}

func (s *Server) listening(address string, err error) {
	s.opts.Fault(address, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.served = slices.DeleteFunc(s.served, func(a string) bool { return a == address })
	if err == nil {
		s.served = append(s.served, address)
		klog.InfoS("Kubernetes API served for pods", "address", address)
	}
}

// Name implements beehive.Module.
func (s *Server) Name() string { return Name }

// Group implements beehive.Module.
func (s *Server) Group() string { return Name }

// Run implements beehive.Module: it serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	parts := []func(context.Context) error{
		s.keepAddresses,
		func(ctx context.Context) error {
			defer s.tokens.Clear()
			return s.opts.Tokens.Follow(ctx, sink{s.tokens})
		},
		func(ctx context.Context) error {
			defer s.forwarder.Close()
			s.endpoint.Run(ctx)
			return nil
		},
	}
	ended := make(chan error)
	for _, part := range parts {
		go func() { ended <- part(ctx) }()
	}
	var errs []error
	for range parts {
		if err := <-ended; err != nil && ctx.Err() == nil {
			errs = append(errs, err)
			cancel() // the bus runs the module again
		}
	}
	s.mu.Lock()
	s.served = nil
	s.mu.Unlock()
	return errors.Join(errs...)
}

// keepAddresses keeps the addresses for pods on the machine.
func (s *Server) keepAddresses(ctx context.Context) error {
	var addresses []netip.Addr
	for _, a := range s.opts.PodAddresses {
		addresses = append(addresses, a.Addr())
	}
	if len(addresses) == 0 {
		return nil
	}
	return address.Keep(ctx, addresses, func(err error) { s.opts.Fault("address", err) })
}

// sink puts tokens into the table.
type sink struct{ table *identity.Table }

// Stored implements TokenSink.
func (s sink) Stored(row string, tokenRequest []byte, noAudience bool) {
	token, forAPI, err := identity.Read(tokenRequest)
	if err == nil && (forAPI || noAudience) {
		err = s.table.Stored(row, token)
	}
	if err != nil {
		klog.V(2).InfoS("Token of a pod is not known to the API endpoint", "err", err)
	}
}

// Removed implements TokenSink.
func (s sink) Removed(row string) { s.table.Removed(row) }

// CA returns the device's CA as PEM, for the ca.crt of pods.
func (s *Server) CA() []byte { return s.certificate.CA() }

// Report is the state of the endpoint.
type Report struct {
	// Served are the addresses that are listened on.
	Served []string
	// CertificateUntil is when the served certificate ends; it is renewed before.
	CertificateUntil time.Time
	// Clients are the accounts that have something under way, by NAMESPACE/NAME.
	Clients map[string]endpoint.Client
	// Streams are the requests to cloudcore that are under way, and Tokens the tokens of pods that are known.
	Streams, Tokens int
}

// Report returns the state of the endpoint.
func (s *Server) Report() Report {
	s.mu.Lock()
	served := slices.Clone(s.served)
	s.mu.Unlock()
	slices.Sort(served)
	return Report{
		Served:           served,
		CertificateUntil: s.certificate.NotAfter(),
		Clients:          s.endpoint.Clients(),
		Streams:          s.forwarder.Streams(),
		Tokens:           s.tokens.Len(),
	}
}

// Describe implements prometheus.Collector.
func (s *Server) Describe(ch chan<- *prometheus.Desc) { s.endpoint.Describe(ch) }

// Collect implements prometheus.Collector.
func (s *Server) Collect(ch chan<- prometheus.Metric) { s.endpoint.Collect(ch) }
