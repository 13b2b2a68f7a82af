package cloudstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/kubeletproxy"
	"github.com/edgecore-io/edgecore/pkg/shares"
	"github.com/edgecore-io/edgecore/pkg/sourceaddr"
	"github.com/edgecore-io/edgecore/pkg/tunnel"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// node is a node's port, and its tunnel if there is one.
type node struct {
	s        *Server
	name     string
	port     int32
	listener net.Listener
	// ctx ends when the port is closed.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// in and out limit the bytes; nil is no limit.
	in, out *rate.Limiter

	mu sync.Mutex
	// links counts sessions: a newer one may begin before the older one has ended. offlineSince is when the last one
	// ended; zero if there was none since the start.
	links        int
	offlineSince time.Time
	// from is where the newest session comes from.
	from netip.Addr
	// link opens streams of the newest session's link; nil if the link has none.
	link cloudhub.Streams
	// kubeEdgeTunnel is the tunnel of a KubeEdge node, nil if it has none; hadKubeEdgeTunnel reports whether the node's
	// newest session was such a tunnel.
	kubeEdgeTunnel    *kubeletproxy.Tunnel
	hadKubeEdgeTunnel bool
	// tunnel is the one that new streams use; nil is none. idle closes it.
	tunnel *tunnel.Opener
	idle   *time.Timer
	// asked is the request for a tunnel that is under way; nil is none.
	asked *request
	// streams are the node's connections by the source of their callers; they change with mu. linkStreams counts those
	// of them that are streams of a link.
	streams     *shares.Budget[netip.Prefix]
	linkStreams int
}

// request is a request for a tunnel.
type request struct {
	token string
	// answered is closed when there is a tunnel, or err says why there is none.
	answered chan struct{}
	err      error
}

func newNode(s *Server, name string, l net.Listener, port int32) *node {
	n := &node{
		s: s, name: name, port: port, listener: l,
		streams: shares.NewBudget[netip.Prefix](int64(s.opts.Streams), int64(s.opts.Streams-s.opts.Streams/callerRest)),
	}
	n.ctx, n.cancel = context.WithCancelCause(context.Background())
	if r := s.opts.BytesPerSecond; r > 0 {
		n.in, n.out = rate.NewLimiter(rate.Limit(r), burst(r)), rate.NewLimiter(rate.Limit(r), burst(r))
	}
	return n
}

// closePort closes the port, so that there is no new tunnel either. closeTunnels does the rest.
func (n *node) closePort(why string) {
	n.cancel(errors.New(why))
	_ = n.listener.Close()
}

// closeTunnels closes the tunnels of a node whose port is closed. It may wait for the node, so s.mu must not be held.
func (n *node) closeTunnels() {
	n.dropTunnel(context.Cause(n.ctx).Error())
	if t := n.proxy(); t != nil {
		t.Close()
	}
}

func (n *node) connected(from netip.Addr, link cloudhub.Streams) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.links++
	n.from, n.link, n.hadKubeEdgeTunnel = from, link, false
}

// proxied begins a tunnel of a KubeEdge node. It returns the previous one, which the caller must close, or nil.
func (n *node) proxied(t *kubeletproxy.Tunnel) (before *kubeletproxy.Tunnel) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before = n.kubeEdgeTunnel
	n.links++
	n.kubeEdgeTunnel, n.hadKubeEdgeTunnel = t, true
	return before
}

func (n *node) unproxied(t *kubeletproxy.Tunnel) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.links--
	n.offlineSince = time.Now()
	if n.kubeEdgeTunnel == t {
		n.kubeEdgeTunnel = nil
	}
}

func (n *node) proxy() *kubeletproxy.Tunnel {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.kubeEdgeTunnel
}

func (n *node) remote() netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.from
}

// disconnected ends the tunnel with the session: the node's certificate may be valid no longer.
func (n *node) disconnected() {
	n.mu.Lock()
	n.links--
	n.offlineSince = time.Now()
	if n.links <= 0 {
		n.link = nil
	}
	n.mu.Unlock()
	n.dropTunnel("the node's connection ended")
}

// offlineFrom records since when a node has been offline, unless that is known already.
func (n *node) offlineFrom(since time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.links <= 0 && n.offlineSince.IsZero() {
		n.offlineSince = since
	}
}

func (n *node) offline() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.links <= 0
}

// dropTunnel ends the tunnel, and the request for one.
func (n *node) dropTunnel(why string) {
	n.mu.Lock()
	t := n.tunnel
	n.tunnel = nil
	n.answerPending(errors.New(why))
	n.mu.Unlock()
	if t != nil {
		_ = t.Close()
	}
}

// answerPending ends the request that is under way. n.mu is held.
func (n *node) answerPending(err error) {
	if n.asked != nil {
		n.asked.err = err
		close(n.asked.answered)
		n.asked = nil
	}
}

func (n *node) expects(token string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked != nil && n.asked.token == token
}

// serveTunnel serves a tunnel that was asked for, until it ends.
func (n *node) serveTunnel(ctx context.Context, token string, conn net.Conn) {
	t, err := tunnel.NewOpener(conn, n.s.opts.Memory)
	if err != nil {
		_ = conn.Close()
		return
	}
	n.mu.Lock()
	if n.asked == nil || n.asked.token != token || n.ctx.Err() != nil {
		n.mu.Unlock()
		_ = t.Close()
		return
	}
	n.tunnel = t
	idle := time.AfterFunc(n.s.opts.Idle, func() { n.closeIdle(t) })
	n.idle = idle
	n.answerPending(nil)
	n.mu.Unlock()
	n.s.metrics.opened.Inc()
	klog.V(2).InfoS("Tunnel opened", "node", n.name, "remote", conn.RemoteAddr())
	defer context.AfterFunc(ctx, func() { _ = t.Close() })()
	err = t.Run()
	n.mu.Lock()
	if n.tunnel == t {
		n.tunnel = nil
	}
	n.mu.Unlock()
	idle.Stop()
	if errors.Is(err, tunnel.ErrStream) || errors.Is(err, shares.ErrUnread) {
		klog.InfoS("Tunnel closed", "node", n.name, "err", err)
		return
	}
	klog.V(2).InfoS("Tunnel closed", "node", n.name, "why", err)
}

// closeIdle closes a tunnel that has had no stream for a time.
func (n *node) closeIdle(t *tunnel.Opener) {
	n.mu.Lock()
	if n.tunnel != t || n.streams.Taken() > 0 {
		n.mu.Unlock()
		return
	}
	n.tunnel = nil
	n.mu.Unlock()
	_ = t.Close()
}

// accept accepts connections until the port is closed.
func (n *node) accept() {
	for {
		c, err := n.listener.Accept()
		if n.ctx.Err() != nil {
			if err == nil {
				_ = c.Close()
			}
			return
		}
		if err != nil { // too many open files, say
			klog.ErrorS(err, "Connection to a node not accepted", "node", n.name)
			select {
			case <-n.ctx.Done():
			case <-time.After(time.Second):
			}
			continue
		}
		if caller := n.s.callers.Enter(c); caller != nil {
			n.s.conns.Go(func() { n.carryConn(caller) })
		}
	}
}

// carryConn carries one connection. Nothing is counted against the node, or opened, before the caller's ClientHello.
func (n *node) carryConn(c *shares.Conn) {
	defer context.AfterFunc(n.ctx, func() { _ = c.Close() })()
	if !c.AwaitHello() {
		return
	}
	from := sourceaddr.Of(c.RemoteAddr())
	if err := n.countConn(from); err != nil {
		n.refuse(c, err)
		return
	}
	defer n.uncountConn(from)
	c.Done() // it counts for the node now
	if t := n.proxy(); t != nil {
		n.carryRequests(c, t)
		return
	}
	stream, lost, err := n.stream()
	if err != nil {
		n.refuse(c, err)
		return
	}
	// Join would not notice the end of the tunnel or link after the end of what the node sends.
	defer context.AfterFunc(lost, func() { _ = c.Close() })()
	n.s.metrics.carried.Inc()
	a, b := n.limited(c, stream)
	tunnel.Join(a, b, n.s.metrics.toNode.add, n.s.metrics.fromNode.add)
	if errors.Is(context.Cause(lost), shares.ErrUnread) {
		n.s.metrics.cut.Inc()
		klog.InfoS("Connection to a node ended: its caller does not read", "node", n.name, "caller", c.RemoteAddr())
	}
}

// refuse answers a connection with why it is not carried.
func (n *node) refuse(c net.Conn, why error) {
	n.s.metrics.failed.WithLabelValues(causeOf(why)).Inc()
	n.s.refuser.refuse(n.ctx, c, why.Error())
}

// carryRequests serves one connection to a node of KubeEdge's. TLS ends here.
func (n *node) carryRequests(c net.Conn, t *kubeletproxy.Tunnel) {
	n.s.metrics.carried.Inc()
	counted := &countedConn{Conn: c, m: n.s.metrics}
	serve(n.ctx, tls.Server(n.paced(counted), n.s.refuser.proxied), t)
}

// countedConn counts the bytes of a connection.
type countedConn struct {
	net.Conn
	m *metrics
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.m.toNode.add(n)
	return n, err
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.m.fromNode.add(n)
	return n, err
}

// failure is why a connection is not carried. cause is for the metrics.
type failure struct{ cause, text string }

func (f *failure) Error() string { return f.text }

func causeOf(err error) string {
	var f *failure
	if errors.As(err, &f) {
		return f.cause
	}
	return "tunnel"
}

// countConn counts a connection from a source, which end ends.
func (n *node) countConn(from netip.Prefix) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.links <= 0:
		since := ""
		if !n.offlineSince.IsZero() {
			since = " since " + n.offlineSince.UTC().Format(time.RFC3339)
		}
		if n.hadKubeEdgeTunnel {
			return &failure{"offline", fmt.Sprintf("node %s has had no stream tunnel%s: KubeEdge's edgecore opens it "+
				"while it is connected (modules.edgeStream)", n.name, since)}
		}
		return &failure{"offline", fmt.Sprintf("node %s is offline%s: it has no connection to cloudcore", n.name,
			since)}
	case n.streams.Taken() >= int64(n.s.opts.Streams):
		return &failure{"limit", fmt.Sprintf("node %s has %d connections through its tunnel, which is the limit "+
			"(modules.cloudStream.streamsPerNode)", n.name, n.streams.Taken())}
	case !n.streams.Take(from, 1):
		return &failure{"limit", fmt.Sprintf("%s has %d of the %d connections that node %s may have through its "+
			"tunnel (modules.cloudStream.streamsPerNode), which is the most for one address",
			from.Addr(), n.streams.Of(from), n.s.opts.Streams, n.name)}
	}
	return nil
}

// stream opens a stream: of the link if that has some, else of a tunnel. A link takes fewer streams than a node serves
// logs, so a tunnel takes what is more. If there is none, the link's limit is the cause. lost
// ends with the tunnel, the link or the stream.
func (n *node) stream() (stream net.Conn, lost context.Context, err error) {
	link := n.linkOpener()
	if link == nil {
		return n.streamOfTunnel()
	}
	if stream, lost, err = n.openOnLink(link); !errors.Is(err, wire.ErrStreams) {
		return stream, lost, err
	}
	full := err
	if stream, lost, err = n.streamOfTunnel(); err != nil {
		return nil, nil, &failure{"limit", fmt.Sprintf("node %s takes no more connections on its link: %v; and no "+
			"tunnel: %v", n.name, full, err)}
	}
	return stream, lost, nil
}

// streamOfTunnel opens a stream of the node's tunnel, which it asks for if there is none. A tunnel that turns out to be
// dead is replaced once.
func (n *node) streamOfTunnel() (stream net.Conn, lost context.Context, err error) {
	t, err := n.get()
	if err != nil {
		return nil, nil, err
	}
	if stream, lost, err = t.Open(); err == nil {
		return stream, lost, nil
	}
	n.mu.Lock()
	if n.tunnel == t {
		n.tunnel = nil
	}
	n.mu.Unlock()
	if t, err = n.get(); err != nil {
		return nil, nil, err
	}
	return t.Open()
}

func (n *node) linkOpener() cloudhub.Streams {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.link
}

// openOnLink opens a stream of the node's link.
func (n *node) openOnLink(link cloudhub.Streams) (stream net.Conn, lost context.Context, err error) {
	ctx, cancel := context.WithTimeout(n.ctx, askTimeout)
	defer cancel()
	stream, lost, err = link.Open(ctx, n.s.opts.Address)
	switch {
	case err == nil:
		n.countOnLink(1)
		return &linkStream{stream, sync.OnceFunc(func() { n.countOnLink(-1) })}, lost, nil
	case n.ctx.Err() != nil:
		return nil, nil, &failure{"stopping", fmt.Sprintf("node %s: %v", n.name, context.Cause(n.ctx))}
	case errors.Is(err, wire.ErrStreams):
		return nil, nil, err
	case errors.Is(err, context.DeadlineExceeded):
		return nil, nil, &failure{"limit", fmt.Sprintf("node %s takes no more connections on its link: %v", n.name,
			err)}
	}
	return nil, nil, &failure{"tunnel", fmt.Sprintf("no stream of the link of node %s: %v", n.name, err)}
}

func (n *node) countOnLink(change int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.linkStreams += change
}

// linkStream counts the end of a stream of the link.
type linkStream struct {
	net.Conn
	ended func()
}

// Close implements net.Conn.
func (s *linkStream) Close() error {
	defer s.ended()
	return s.Conn.Close()
}

// CloseWrite ends the writing side.
func (s *linkStream) CloseWrite() error { return tunnel.CloseWrite(s.Conn) }

// uncountConn counts the end of a connection. The last one starts the time after which the tunnel is closed.
func (n *node) uncountConn(from netip.Prefix) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.streams.Return(from, 1); n.streams.Taken() == 0 && n.tunnel != nil {
		n.idle.Reset(n.s.opts.Idle)
	}
}

// get returns the tunnel. It asks the node for one if there is none, once for all that wait.
func (n *node) get() (*tunnel.Opener, error) {
	n.mu.Lock()
	if t := n.tunnel; t != nil {
		n.mu.Unlock()
		return t, nil
	}
	r := n.asked
	if r == nil {
		r = &request{token: newToken(), answered: make(chan struct{})}
		n.asked = r
		ask := tunnel.Request{Token: r.token, Address: n.s.opts.Address.String()}
		if !n.s.opts.Send(n.name, ask.Message()) {
			n.answerPending(errors.New("its connection has just ended, or takes no messages"))
		}
	}
	n.mu.Unlock()
	timer := time.NewTimer(askTimeout)
	defer timer.Stop()
	select {
	case <-r.answered:
	case <-n.ctx.Done():
		return nil, &failure{"stopping", fmt.Sprintf("node %s: %v", n.name, context.Cause(n.ctx))}
	case <-timer.C:
		n.mu.Lock()
		if n.asked == r {
			n.answerPending(fmt.Errorf("it was not opened within %v; the log of edgecore on the node says why",
				askTimeout))
		}
		n.mu.Unlock()
		<-r.answered
	}
	if r.err != nil {
		why := fmt.Sprintf("no tunnel to node %s: %v", n.name, r.err)
		n.s.opts.Failed(n.name, why)
		return nil, &failure{"tunnel", why}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.tunnel == nil {
		return nil, &failure{"tunnel", fmt.Sprintf("the tunnel to node %s ended as soon as it was open", n.name)}
	}
	return n.tunnel, nil
}
