// Package cloudhub is the cloud's end of the links to edge nodes. It decides who may connect, keeps each node's objects
// up to date, and passes nodes' requests to Upstream.
//
// It promises:
//
//   - A node speaks only for itself: the certificate of a link names its node.
//   - A node has one session. A newer connection replaces the older one. Upstream learns of the older session's end
//     once, before the newer one begins.
//   - Every object that Downstream wants a node to have reaches it, in its newest state, once; every object that the
//     node must not have is deleted there by its UID. This holds across reconnects, lost acks, refusals and restarts of
//     this process. Our edgecore reports what its node holds; for KubeEdge's, the sync objects do.
//   - Requests of a node are handled one at a time for each object, and a few objects in parallel. The backlog is
//     bounded: a node that floods, is slow or hangs does not delay others.
//   - A request in a batch is handled like one that came alone. Answers to a batch share messages; none waits for long.
//   - No message from a node can end more than its own session.
//
// An idle session has one goroutine, which reads. For a node only the keys of changed objects are queued.
package cloudhub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub/handshakes"
	"github.com/edgecore-io/edgecore/cloud/cloudhub/queue"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/shares"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Records keeps what KubeEdge's edgecores have acked, across restarts of this process. Methods without a context never
// block.
type Records interface {
	// Held returns what a node is known to hold. It waits until this is known.
	Held(ctx context.Context, node string) (map[resource.Key]queue.State, error)
	// Sending is called before the first message about an object, which is sent only if Sending returns nil: a
	// cloudcore that stops right after sending must leave a record of what the node may hold. Acked is called when the
	// node has stored a state of the object, Deleted when it has deleted the object.
	Sending(ctx context.Context, node string, ref Ref) error
	Acked(node string, ref Ref, version string)
	Deleted(node string, ref Ref)
	// Forget drops all records of a node.
	Forget(node string)
	// Nodes lists the nodes that have records; it is empty until they are loaded.
	Nodes() []string
}

// NoRecords keeps nothing: edgecores without an inventory get everything at each connect.
type NoRecords struct{}

// Held returns nothing.
func (NoRecords) Held(context.Context, string) (map[resource.Key]queue.State, error) { return nil, nil }

// Sending does nothing.
func (NoRecords) Sending(context.Context, string, Ref) error { return nil }

// Acked does nothing.
func (NoRecords) Acked(string, Ref, string) {}

// Deleted does nothing.
func (NoRecords) Deleted(string, Ref) {}

// Forget does nothing.
func (NoRecords) Forget(string) {}

// Nodes returns nothing.
func (NoRecords) Nodes() []string { return nil }

// Defaults of KubeEdge.
const (
	DefaultKeepaliveInterval = 30 * time.Second
	DefaultNodeLimit         = 500
)

// Options configures a Hub. Downstream and Upstream are required.
type Options struct {
	Downstream Downstream
	Upstream   Upstream
	// Removed, which may be nil, returns what a delete of an object has instead of the metadata alone, as JSON with
	// apiVersion and kind; nil is no more than that.
	Removed func(key resource.Key, uid types.UID) json.RawMessage
	// Records are for KubeEdge's edgecores; nil keeps none.
	Records Records
	// KubeCA is the CA of the Kubernetes API in PEM, which edges ask for.
	KubeCA []byte
	// NodeLimit is the maximum number of connected nodes. OpenFiles is the limit of open files of the process, which
	// may allow fewer; 0 is unknown.
	NodeLimit int
	OpenFiles uint64
	// KeepaliveInterval is how long a node may be silent before its session ends.
	KeepaliveInterval time.Duration
	// WriteTimeout is how long a write may take; zero takes the link's own.
	WriteTimeout time.Duration
	// MaxMessage is the largest message in bytes, both ways; zero takes the link's own.
	MaxMessage int64
	// LegacyCertificates lets every node in with the one certificate that edges up to v1.15 share. It does not name the
	// node: anyone who has it may claim any name.
	LegacyCertificates bool
	// Gate checks further which certificates may speak for a node; nil accepts all.
	Gate Gate
	// Duplicate is called when two devices use the certificate of one node, each time one replaces the other. If it is
	// nil, this is only logged.
	Duplicate func(ctx context.Context, node, message string)
	// Features are those offered to our edgecores. Tunnel is offered if there are Tunnels, and not Direct. API is if
	// there is an API.
	Features wire.Features
	// Tunnels carries connections to nodes; nil: no node is asked for a tunnel. With Direct, it carries those to
	// KubeEdge's nodes alone: callers connect to ours themselves.
	Tunnels Tunnels
	Direct  bool
	// API serves the requests of nodes to the Kubernetes API; nil: nodes are not offered to send any.
	API API
	// Memory is for what nodes have sent over QUIC or to the API and nobody has read; nil: memory of its own.
	Memory *shares.Memory
	// Registry registers the metrics; nil: no metrics.
	Registry prometheus.Registerer
}

// Hub holds the sessions. Make it with New; each server runs until its context ends.
type Hub struct {
	opts    Options
	limit   limit
	metrics *metrics
	kinds   kinds
	refused refusedLog
	// arrivals are the connections to TCP ports that have no request yet.
	arrivals *shares.Conns
	// handshakes limits the connections of WebSockets that are not sessions yet.
	handshakes *handshakes.Limiter
	clones     clones
	// doubtful limits the API requests that nodes cause by naming objects, reading how fast their messages are read.
	doubtful, reading limiters
	// epoch is the origin of the moments that sessions store as numbers. They use the monotonic clock, so that setting
	// the wall clock ends no session and renews no lease early. epoch is long before the first moment.
	epoch time.Time

	mu       sync.Mutex
	sessions map[string]*session
	// apis are the connections for the API.
	apis map[string]*apiSession
	// barred are nodes that are not taken by QUIC until the given time.
	barred  map[string]time.Time
	serving int
	closed  bool
}

// New makes a hub without connections.
func New(opts Options) (*Hub, error) {
	if opts.Downstream == nil || opts.Upstream == nil {
		return nil, fmt.Errorf("cloudhub needs a Downstream and an Upstream")
	}
	if opts.Records == nil {
		opts.Records = NoRecords{}
	}
	if opts.Memory == nil {
		opts.Memory = shares.NewMemory()
	}
	if opts.NodeLimit <= 0 {
		opts.NodeLimit = DefaultNodeLimit
	}
	if opts.KeepaliveInterval <= 0 {
		opts.KeepaliveInterval = DefaultKeepaliveInterval
	}
	opts.Features.Tunnel = opts.Tunnels != nil && !opts.Direct
	opts.Features.API = opts.API != nil
	filesPerNode := filesOfNode
	if opts.API != nil {
		filesPerNode += filesOfAPI
	}
	h := &Hub{
		opts:     opts,
		limit:    limitOf(opts.NodeLimit, opts.OpenFiles, filesPerNode),
		sessions: map[string]*session{},
		apis:     map[string]*apiSession{},
		epoch:    time.Now().Add(-24 * time.Hour),
		doubtful: limiters{rate: doubtfulRate, burst: doubtfulBurst},
		reading:  limiters{rate: readRate, burst: readBurst},
	}
	if h.limit.byFiles {
		klog.InfoS("Fewer nodes can be connected than modules.cloudHub.nodeLimit says: each takes several open "+
			"files. Raise the limit of open files (LimitNOFILE of the service or of containerd, or ulimit -n)",
			"nodeLimit", opts.NodeLimit, "openFiles", opts.OpenFiles, "openFilesPerNode", filesPerNode,
			"nodes", h.limit.nodes)
	}
	h.metrics = newMetrics(h)
	h.arrivals = shares.New(shares.Options{
		Size:    func() int { return h.limit.arrivalsOf(opts.OpenFiles, h.connected()) },
		Share:   h.limit.arrivalsOf(0, 0) / 2,
		Hello:   helloTimeout,
		Refused: h.metrics.refused.WithLabelValues("connections").Inc,
	})
	cores := runtime.GOMAXPROCS(0)
	h.handshakes = handshakes.New(handshakes.Options{
		Slots:   cores * handshakesPerCore,
		Waiting: cores * handshakesWaiting,
		Timeout: headerTimeout,
		Refused: h.metrics.refused.WithLabelValues("busy").Inc,
	})
	if opts.Registry != nil {
		if err := opts.Registry.Register(h.metrics); err != nil {
			return nil, fmt.Errorf("register cloudhub's metrics: %w", err)
		}
	}
	return h, nil
}

// moment converts a time to a number, and timeOf converts it back.
func (h *Hub) moment(t time.Time) int64      { return int64(t.Sub(h.epoch)) }
func (h *Hub) timeOf(moment int64) time.Time { return h.epoch.Add(time.Duration(moment)) }

// Run ends silent sessions and renews leases until its context ends; then it ends all sessions and waits for them.
func (h *Hub) Run(ctx context.Context) error {
	step := min(max(h.opts.KeepaliveInterval/20, 20*time.Millisecond), time.Second)
	tick := time.NewTicker(step)
	defer tick.Stop()
	var records sync.WaitGroup
	records.Go(func() { h.forgetGone(ctx) })
	defer records.Wait()
	for {
		select {
		case <-ctx.Done():
			h.shutdown()
			return ctx.Err()
		case now := <-tick.C:
			h.sweep(now, step)
		}
	}
}

// recordsPeriod is how often the hub checks for records of deleted nodes.
const recordsPeriod = 10 * time.Minute

// forgetGone drops the records of nodes that no longer exist, until the context ends.
func (h *Hub) forgetGone(ctx context.Context) {
	tick := time.NewTicker(time.Second) // often until there are records
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if h.forgetGoneNow(ctx) {
			tick.Reset(recordsPeriod)
		}
	}
}

// forgetGoneNow does that once; it reports whether there are records. It skips connected nodes, which may not be
// registered yet: Disconnect handles them.
func (h *Hub) forgetGoneNow(ctx context.Context) bool {
	nodes := h.opts.Records.Nodes()
	for _, node := range nodes {
		if ctx.Err() == nil && h.session(node) == nil {
			h.forgetIfGone(node)
		}
	}
	return len(nodes) > 0
}

// forgetIfGone drops the records of a node that has no Node object.
func (h *Hub) forgetIfGone(node string) {
	object, err := h.opts.Downstream.Object(node, nodeKey(node))
	object.callDone()
	if err == nil && object == nil {
		klog.V(2).InfoS("Records of a deleted node dropped", "node", node)
		h.opts.Records.Forget(node)
	}
}

// shutdown ends all sessions and refuses new ones.
func (h *Hub) shutdown() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	all, apis := h.allSessions(), h.allAPIs()
	for _, s := range all {
		s.closeLink(wire.CloseGoingAway, "cloudcore stops")
	}
	for _, s := range apis {
		s.closeLink("cloudcore stops")
	}
	for _, s := range all {
		<-s.done
	}
	for _, s := range apis {
		<-s.done
	}
}

// connected returns how many nodes are connected.
func (h *Hub) connected() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.sessions)
}

// Arrivals limits the connections of a listener that have no request yet, together with those of the hub's own TCP
// ports: their number, the share of each source, and how long a client may take for its ClientHello, with which they
// are returned. What it returns owns the listener, and must be closed.
func (h *Hub) Arrivals(l net.Listener) net.Listener { return h.arrivals.Listen(l) }

func (h *Hub) allSessions() []*session {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]*session, 0, len(h.sessions))
	for _, s := range h.sessions {
		all = append(all, s)
	}
	return all
}

func (h *Hub) session(node string) *session {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sessions[node]
}

// Changed marks an object of a node as new, changed or deleted. It never blocks. It ignores nodes that are not
// connected here.
func (h *Hub) Changed(node string, key resource.Key) {
	if s := h.session(node); s != nil {
		s.changed(key)
	}
}

// StatusChanged reports that nothing but the status of a node's pod changed. Our edgecores need not know. It never
// blocks.
func (h *Hub) StatusChanged(node string, pod resource.Key) {
	if s := h.session(node); s != nil {
		s.statusChanged(pod)
	}
}

// Holds records that a node holds an object, whatever was sent to it: the node must delete it if it must not have it.
// Objects beyond what a node can hold are ignored. It never blocks.
func (h *Hub) Holds(node string, key resource.Key, uid types.UID) {
	s := h.session(node)
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(key.Namespace)+len(key.Type)+len(key.Name) > heldKeyMax || len(uid) > heldTextMax ||
		!s.queue.Holds(key, uid, heldMax) {
		h.metrics.dropped.Inc()
		return
	}
	s.kick()
}

// maxLate is how many messages of Send may wait to be written to one node.
const maxLate = 4096

// Send queues a message that is neither an object nor the answer of Upstream.Handle: a later answer, or one that a node
// does not acknowledge. It never blocks. The message is lost if the link ends before it is written. It reports whether
// the node is connected and has room for the message.
func (h *Hub) Send(node string, m *model.Message) bool {
	s := h.session(node)
	return s != nil && s.post(m)
}

// RequestStatus asks a node to report the status of a pod again. Like Send, it never blocks and the request may be
// lost. It returns false if the node is not connected here, has no room, or its edgecore cannot be asked.
func (h *Hub) RequestStatus(node string, pod resource.Key, uid types.UID) bool {
	s := h.session(node)
	return s != nil && s.features.Report &&
		s.post(wire.NewReportRequest(sourceEdgeController, pod.String(), string(uid)))
}

// Disconnect ends a node's session, and its connection for the API. The node's records are dropped too if its Node
// object is gone.
func (h *Hub) Disconnect(node, reason string) {
	h.clones.forget(node)
	if s := h.api(node); s != nil {
		s.closeLink(reason)
	}
	if s := h.session(node); s != nil {
		s.dismissed.Store(true)
		s.closeLink(wire.ClosePolicy, reason)
	}
}

// Connected lists the nodes with a session, unordered.
func (h *Hub) Connected() []string {
	all := h.allSessions()
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = s.node
	}
	return names
}

// Health returns what is wrong with the hub, or nil.
func (h *Hub) Health() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return fmt.Errorf("cloudhub stops")
	case h.serving == 0:
		return fmt.Errorf("no listener is enabled: enable modules.cloudHub.websocket or quic")
	}
	return nil
}

// listening counts a server while it serves.
func (h *Hub) listening(n int) {
	h.mu.Lock()
	h.serving += n
	h.mu.Unlock()
}

// waitForOlder is how long a newer connection waits for the older one's requests to finish.
const waitForOlder = 30 * time.Second

// register makes s the session of its node. It returns an error if the hub is full or stopping.
func (h *Hub) register(s *session) (older *session, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, fmt.Errorf("cloudcore stops")
	}
	older = h.sessions[s.node]
	if older == nil && len(h.sessions) >= h.limit.nodes {
		return nil, h.limit.full()
	}
	h.sessions[s.node] = s
	return older, nil
}

// unregister removes a session, unless a newer one has replaced it.
func (h *Hub) unregister(s *session) {
	h.mu.Lock()
	if h.sessions[s.node] == s {
		delete(h.sessions, s.node)
	}
	h.mu.Unlock()
}

// Serve runs a session on a link whose node is authenticated, until the link ends. If until is not zero, it ends the
// session then: TLS checks certificates only when a link begins.
func (h *Hub) Serve(ctx context.Context, node string, until time.Time, conn wire.Conn) {
	if s := h.open(ctx, node, until, conn); s != nil {
		s.run()
	}
}

// open makes the session of a link, and waits for an older one of its node to end. It returns nil and closes the link
// if there is no room. Otherwise the caller calls run, best in a fresh goroutine: its stack stays as long as the link.
func (h *Hub) open(ctx context.Context, node string, until time.Time, conn wire.Conn) *session {
	s := newSession(h, node, conn)
	if !until.IsZero() {
		s.expire = time.AfterFunc(time.Until(until), func() {
			s.closeLink(wire.ClosePolicy,
				fmt.Sprintf("the certificate of this connection expired at %s: connect with a newer one, or join again",
					until.UTC().Format(time.RFC3339)))
		})
	}
	s.detach = context.AfterFunc(ctx, func() { s.closeLink(wire.CloseGoingAway, "cloudcore stops") })
	older, err := h.register(s)
	if err != nil {
		h.metrics.refused.WithLabelValues("limit").Inc()
		klog.InfoS("Node refused", "node", node, "remote", conn.RemoteAddr(), "err", err)
		s.closeLink(wire.CloseTryLater, err.Error())
		<-s.closed
		s.release()
		return nil
	}
	if older != nil {
		older.closeLink(wire.CloseReplaced, fmt.Sprintf("a newer connection of %s from %s took over", node,
			conn.RemoteAddr()))
		timer := time.NewTimer(waitForOlder)
		select {
		case <-older.done:
		case <-timer.C:
			klog.InfoS("Requests of an older connection are still running; the new connection does not wait for "+
				"them", "node", node)
		}
		timer.Stop()
	}
	return s
}

// kubeCAAnswer answers an edge's request for the CA of the API.
func (h *Hub) kubeCAAnswer(m *model.Message) *model.Message {
	if len(h.opts.KubeCA) == 0 {
		return m.RespondError(sourceCloudHub,
			errors.New("cloudcore knows no CA of the Kubernetes API: name one in its kubeconfig"))
	}
	content, err := json.Marshal(string(h.opts.KubeCA))
	if err != nil { // a string always encodes
		panic(err)
	}
	r := m.Respond(content)
	r.Route.Source, r.Route.Group = sourceCloudHub, model.GroupResource
	return r
}

// ref returns what the records need about an object.
func (h *Hub) ref(key resource.Key, uid types.UID, rv string) Ref {
	apiVersion, kind := h.kinds.ofType(key.Type)
	return Ref{Key: key, UID: uid, APIVersion: apiVersion, Kind: kind, ResourceVersion: rv}
}
