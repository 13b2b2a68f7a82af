// Package cloudstream gives each node a TCP port of its own on cloudcore's address, and carries what connects there to
// the node's kubelet API (port 10250). kube-apiserver, metrics-server and Prometheus find address and port in the Node
// (package edgecontroller writes them), so that they reach nodes behind NAT without knowing of it.
//
// It promises:
//
//   - Bytes are carried as they are. TLS, credentials and permissions are between the caller and the node; cloudcore
//     decides nothing and reads nothing.
//   - A node that nobody asks for costs a listening socket. Its tunnel is opened by the first connection that begins
//     TLS, and closed when there was none for five minutes. Connections that say nothing cost the node nothing. A node
//     whose link is QUIC needs none: connections are streams of the link.
//   - Callers of a node that is not connected, or whose tunnel cannot be opened, get an HTTP answer that says why, at
//     once or within seconds.
//   - A node has the same port for as long as it can: across reconnects, and across restarts of cloudcore. A port that
//     a Node names is given to no other node, and of two Nodes that name one, neither gets it.
//   - Streams, and if configured bytes a second, are limited for each node, and streams for each source of callers. So
//     is the memory of what nodes have sent and callers have not read, for each node and for all (shares.Memory):
//     beyond it the connection that has most ends.
package cloudstream

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/kubeletproxy"
	"github.com/edgecore-io/edgecore/pkg/edgestream"
	"github.com/edgecore-io/edgecore/pkg/shares"
)

// Defaults and limits.
const (
	// DefaultStreams is how many connections a node may have at a time.
	DefaultStreams = 256
	// askTimeout is how long a node may take to open a tunnel.
	askTimeout = 20 * time.Second
	// idleTimeout is how long a tunnel without a stream is kept.
	idleTimeout = 5 * time.Minute
	// adoptShare is the share of the ports, one in so many, that Adopt leaves free for nodes that connect; adoptTries
	// is how many ports it tries to open if it does not get the given one.
	adoptShare = 10
	adoptTries = 8
	// callersMax is how many callers of all nodes may not have been counted for a node yet, since their ClientHello has
	// not arrived, or an answer says why they are refused. One source may have all of them while no other wants one:
	// all kubectl may come from one address. Those that are sent an answer have shares of their own (refusalsShare).
	callersMax = 1024
	// helloTimeout is how long a caller may take for its ClientHello.
	helloTimeout = 10 * time.Second
	// callerRest is the share of a node's connections, one in so many, that a source leaves to others. It is small: all
	// kubectl come from one address where there is one kube-apiserver.
	callerRest = 4
)

// callerKeepAlive ends connections whose caller's machine has vanished within a minute; Go's default takes 150 s. It is
// no more than an empty packet and its answer on the cluster's network: devices see nothing of it.
var callerKeepAlive = net.KeepAliveConfig{
	Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3,
}

// Options configures a Server. Address, Ports and Send are required.
type Options struct {
	// Address is the IP address at which callers reach this cloudcore. Listen is where it listens; the zero value is
	// Address.
	Address, Listen netip.Addr
	// FirstPort to LastPort are the ports for nodes.
	FirstPort, LastPort int32
	// Streams is how many connections a node may have at a time; 0 is DefaultStreams.
	Streams int
	// BytesPerSecond limits what is carried for each node, in each direction; 0 is no limit.
	BytesPerSecond int64
	// Direct leaves a node its own address if it connects from there: no NAT is in between.
	Direct bool
	// Previous returns the port that the Node has at this address; 0 is none, or that another Node has it, too. Named
	// reports whether any Node has a port at this address: it is given to no other node. Both answer from memory; nil
	// for Named is none.
	Previous func(node string) int32
	Named    func(port int32) bool
	// Send sends a message to a node, and reports whether it is connected.
	Send func(node string, m *model.Message) bool
	// Guard decides who may ask the kubelet API of a node of KubeEdge's. nil: such nodes are refused.
	Guard func(node string) kubeletproxy.Guard
	// Opened is called when a node has got its port that may not report its status soon: one of KubeEdge's, or one that
	// has waited for a port. It may be nil. It must not block.
	Opened func(node string)
	// Failed is called with why a tunnel to a connected node could not be opened; it may be nil. It must not block.
	Failed func(node, why string)
	// Idle is how long a tunnel without a stream is kept; 0 is 5 minutes.
	Idle time.Duration
	// Memory is for what nodes have sent and callers have not read; nil: memory of its own.
	Memory *shares.Memory
	// Registry registers the metrics; nil: no metrics.
	Registry prometheus.Registerer
}

// Server holds the ports and tunnels. It implements cloudhub.Tunnels. Its methods may be called from any goroutine.
type Server struct {
	opts    Options
	metrics *metrics
	refuser *refuser
	// callers are the connections that are not counted for a node yet.
	callers *shares.Conns

	mu    sync.Mutex
	nodes map[string]*node
	// taken are the ports of nodes.
	taken map[int32]string
	// waiting are the connected nodes that got no port.
	waiting waitingNodes
	// next is where the search for a free port continues.
	next   int32
	closed bool
	// conns counts what serves connections.
	conns sync.WaitGroup
}

var _ cloudhub.Tunnels = (*Server)(nil)

// New makes a server without ports.
func New(o Options) (*Server, error) {
	if !o.Address.IsValid() {
		return nil, errors.New("cloudstream needs an address")
	}
	if !o.Listen.IsValid() {
		o.Listen = o.Address
	}
	if o.FirstPort <= 0 || o.LastPort < o.FirstPort || o.LastPort > 65535 {
		return nil, fmt.Errorf("ports %d to %d are not a range", o.FirstPort, o.LastPort)
	}
	if o.Streams <= 0 {
		o.Streams = DefaultStreams
	}
	if o.Memory == nil {
		o.Memory = shares.NewMemory()
	}
	if o.Idle <= 0 {
		o.Idle = idleTimeout
	}
	if o.Previous == nil {
		o.Previous = func(string) int32 { return 0 }
	}
	if o.Named == nil {
		o.Named = func(int32) bool { return false }
	}
	if o.Opened == nil {
		o.Opened = func(string) {}
	}
	if o.Failed == nil {
		o.Failed = func(string, string) {}
	}
	refuser, err := newRefuser(o.Address)
	if err != nil {
		return nil, err
	}
	s := &Server{
		opts: o, refuser: refuser,
		callers: shares.New(shares.Options{
			Size: shares.Fixed(callersMax), Share: callersMax, Hello: helloTimeout,
		}),
		nodes: map[string]*node{}, taken: map[int32]string{}, next: o.FirstPort,
	}
	s.metrics = newMetrics(s)
	if o.Registry != nil {
		if err := o.Registry.Register(s.metrics); err != nil {
			return nil, fmt.Errorf("register cloudstream's metrics: %w", err)
		}
	}
	return s, nil
}

// Close closes all ports and tunnels, and waits for what serves them.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	nodes := slices.Collect(maps.Values(s.nodes))
	for _, n := range nodes {
		n.closePort("cloudcore stops")
	}
	s.mu.Unlock()
	var closing sync.WaitGroup
	for _, n := range nodes {
		closing.Go(n.closeTunnels)
	}
	closing.Wait()
	s.conns.Wait()
}

// Connected implements cloudhub.Tunnels. A node that gets no port waits for one.
func (s *Server) Connected(name string, from netip.Addr, streams cloudhub.Streams) {
	err := s.open(name, s.opts.Previous(name), func(n *node) { n.connected(from, streams) }, func() {
		s.waiting.connected(name, from, streams)
	})
	if err != nil {
		klog.ErrorS(err, "Node gets no port: kubectl logs, exec and the like reach it only if kube-apiserver does",
			"node", name)
		s.opts.Failed(name, fmt.Sprintf("node %s gets no port for kubectl logs, exec and the like: %v", name, err))
	}
}

// Disconnected implements cloudhub.Tunnels. While the Node has the port it stays open, so that callers are told that
// the node is offline.
func (s *Server) Disconnected(name string) {
	s.mu.Lock()
	n := s.nodes[name]
	if n == nil {
		s.waiting.disconnected(name)
	}
	s.mu.Unlock()
	if n == nil {
		return
	}
	n.disconnected()
	s.NodeChanged(name)
}

// Restore opens the port of a node that is not connected, so that callers get an error that says so. since is when it
// went offline; zero means unknown. It opens none instead of a port that is not in the range any longer: Adopt does.
func (s *Server) Restore(name string, since time.Time) {
	port := s.opts.Previous(name)
	if !s.Port(port) {
		return
	}
	if err := s.open(name, port, func(n *node) { n.offlineFrom(since) }, nil); err != nil {
		klog.InfoS("Port of an offline node not opened", "node", name, "err", err)
	}
}

// Adopt opens a port for a node that is not connected to any cloudcore, so that callers get an error that says so. It
// prefers the given port and returns the address and port that it opened. NodeChanged closes the port again unless the
// Node has it. A tenth of the ports stays free for nodes that connect.
func (s *Server) Adopt(name string, port int32, since time.Time) (address string, got int32, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if free := s.size() - len(s.taken); s.nodes[name] == nil && free <= s.size()/adoptShare {
		return "", 0, fmt.Errorf("%d of the ports from %d to %d are free, which are kept for nodes that connect; "+
			"enlarge the range (modules.cloudStream.firstPort and lastPort of cloudcore)", free, s.opts.FirstPort,
			s.opts.LastPort)
	}
	err = s.openLocked(name, port, adoptTries, func(n *node) {
		n.offlineFrom(since)
		got = n.port
	})
	return s.opts.Address.String(), got, err
}

// NodeChanged closes the port of a node that is not connected if its Node does not have it: it was deleted, or another
// cloudcore serves it now. Nodes that wait for a port get it.
func (s *Server) NodeChanged(name string) {
	s.mu.Lock()
	var gone *node
	if n := s.nodes[name]; n != nil && n.offline() && s.opts.Previous(name) != n.port {
		gone = n
		n.closePort("another cloudcore serves the node, or it was deleted")
		delete(s.nodes, name)
		delete(s.taken, n.port)
	}
	admitted := s.admitWaiting()
	s.mu.Unlock()
	if gone != nil {
		defer gone.closeTunnels()
	}
	for _, name := range admitted {
		klog.InfoS("Node got a port after waiting for one", "node", name)
		s.opts.Opened(name)
	}
}

// admitWaiting gives free ports to nodes that wait, and returns these. s.mu is held.
func (s *Server) admitWaiting() (admitted []string) {
	for name := s.waiting.first(); name != ""; name = s.waiting.first() {
		if s.openLocked(name, s.opts.Previous(name), s.size(), func(*node) {}) != nil {
			break
		}
		admitted = append(admitted, name)
	}
	return admitted
}

// Endpoint returns the address and port of a connected node with these addresses of its own; ok is false if callers
// connect to the node itself.
func (s *Server) Endpoint(name string, own []netip.Addr) (address string, port int32, ok bool) {
	n := s.existing(name)
	if n == nil || n.offline() || s.opts.Direct && n.proxy() == nil && slices.Contains(own, n.remote()) {
		return "", 0, false
	}
	return s.opts.Address.String(), n.port, true
}

// Port reports whether a port is in the range of nodes' ports.
func (s *Server) Port(port int32) bool { return port >= s.opts.FirstPort && port <= s.opts.LastPort }

// Expects implements cloudhub.Tunnels.
func (s *Server) Expects(name, token string) bool {
	n := s.existing(name)
	return n != nil && n.expects(token)
}

// Serve implements cloudhub.Tunnels.
func (s *Server) Serve(ctx context.Context, name, token string, conn net.Conn) {
	n := s.existing(name)
	if n == nil {
		_ = conn.Close()
		return
	}
	n.serveTunnel(ctx, token, conn)
}

// ServeStream implements cloudhub.Tunnels.
func (s *Server) ServeStream(ctx context.Context, name string, conn *edgestream.Conn) {
	if s.opts.Guard == nil {
		_ = conn.Close()
		return
	}
	t := kubeletproxy.New(name, conn, s.opts.Guard(name), s.opts.Memory)
	var n *node
	var before *kubeletproxy.Tunnel
	err := s.open(name, s.opts.Previous(name), func(opened *node) { n, before = opened, opened.proxied(t) }, nil)
	if before != nil {
		before.Close()
	}
	if err != nil {
		klog.ErrorS(err, "Node of KubeEdge's gets no port: kubectl logs, exec and the like do not reach it",
			"node", name)
		s.opts.Failed(name, fmt.Sprintf("node %s gets no port for kubectl logs, exec and the like: %v", name, err))
		_ = conn.Close()
		return
	}
	defer context.AfterFunc(ctx, t.Close)()
	s.metrics.opened.Inc()
	klog.V(2).InfoS("Stream tunnel opened", "node", name, "remote", conn.RemoteAddr())
	s.opts.Opened(name)
	err = t.Run()
	klog.V(2).InfoS("Stream tunnel closed", "node", name, "why", err)
	n.unproxied(t)
	s.NodeChanged(name)
}

func (s *Server) existing(name string) *node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[name]
}

// open opens a port for a node that has none, preferably the given one, and calls do before NodeChanged can close it.
// Without a free port it calls failed, which may be nil, before another port can become free.
func (s *Server) open(name string, wanted int32, do func(*node), failed func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.openLocked(name, wanted, s.size(), do)
	if err != nil && failed != nil {
		failed()
	}
	return err
}

// openLocked does what open says; without the wanted port it tries at most so many others. s.mu is held.
func (s *Server) openLocked(name string, wanted int32, tries int, do func(*node)) error {
	if s.closed {
		return errors.New("cloudcore stops")
	}
	n := s.nodes[name]
	if n == nil {
		l, port, err := s.listen(wanted, tries)
		if err != nil {
			return err
		}
		n = newNode(s, name, l, port)
		n.links, n.from, n.link = s.waiting.remove(name)
		s.nodes[name], s.taken[port] = n, name
		s.conns.Go(n.accept)
	}
	do(n)
	return nil
}

// size is how many ports there are for nodes.
func (s *Server) size() int { return int(s.opts.LastPort-s.opts.FirstPort) + 1 }

// listen opens the given port. If it is in use or outside the range, listen tries at most so many others.
func (s *Server) listen(wanted int32, tries int) (net.Listener, int32, error) {
	if s.Port(wanted) && s.taken[wanted] == "" {
		if l, err := s.listenOn(wanted); err == nil {
			return l, wanted, nil
		}
	}
	var last error
	named := 0
	for left := s.size(); left > 0 && tries > 0; left-- {
		port := s.next
		if s.next++; s.next > s.opts.LastPort {
			s.next = s.opts.FirstPort
		}
		if s.taken[port] != "" {
			continue
		}
		if s.opts.Named(port) { // callers of the Node that names it do not mean another one
			named++
			continue
		}
		l, err := s.listenOn(port)
		if err == nil {
			return l, port, nil
		}
		last = err
		tries--
	}
	if last == nil {
		last = fmt.Errorf("%d nodes have them", len(s.taken))
		if named > 0 {
			last = fmt.Errorf("%w, and Nodes without a connection name %d", last, named)
		}
	}
	return nil, 0, fmt.Errorf("no port from %d to %d is free: %w; enlarge the range (modules.cloudStream.firstPort "+
		"and lastPort of cloudcore), or delete Nodes whose devices are gone", s.opts.FirstPort, s.opts.LastPort, last)
}

func (s *Server) listenOn(port int32) (net.Listener, error) {
	l := net.ListenConfig{KeepAliveConfig: callerKeepAlive}
	return l.Listen(context.Background(), "tcp", net.JoinHostPort(s.opts.Listen.String(), strconv.Itoa(int(port))))
}

// newToken returns a token for a request.
func newToken() string { return rand.Text() }
