// Package cloudhub is the cloud's end of the links to the edges: it decides who may connect, keeps each node's
// objects as they are to be, and hands what nodes ask for to those who answer.
//
// It promises:
//
//   - A node speaks for itself only: the certificate of a link names its node.
//   - A node has one session. A newer connection replaces the older one, whose end is told once, and before the
//     newer one's beginning.
//   - Every object that Downstream wants a node to have reaches it, in its newest state, once, and every object that
//     it is not to have is deleted there by its UID: over reconnects, lost acks, refusals and restarts of this
//     process. What a node holds it tells itself (our edges), or the sync objects tell (upstream's).
//   - Requests of a node are handled one at a time for each object, a few beside each other, and what is not handled
//     yet is bounded: a node that floods, is slow or stands still holds up nobody else.
//   - Nothing that comes from a node ends more than its session.
//
// A session at rest has one goroutine, which reads. Nothing is queued for a node but the keys of what changed.
package cloudhub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub/queue"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Records outlive this process: what upstream edges acked. Methods without a context never block.
type Records interface {
	// Held is what a node is known to hold. It waits until that can be said.
	Held(ctx context.Context, node string) (map[resource.Key]queue.State, error)
	// Sending is called before the first message about an object, which is sent only if Sending returns nil. A
	// cloudcore that ends right after sending must leave a record of what the node may hold. Acked is called when a
	// state of the object is stored on the node, Deleted when the object is gone from there.
	Sending(ctx context.Context, node string, ref Ref) error
	Acked(node string, ref Ref, version string)
	Deleted(node string, ref Ref)
	// Forget drops everything of a node.
	Forget(node string)
	// Nodes are those of which something is recorded; none before that can be said.
	Nodes() []string
}

// NoRecords keeps nothing: edges without an inventory get everything at each connect.
type NoRecords struct{}

// Held is nothing.
func (NoRecords) Held(context.Context, string) (map[resource.Key]queue.State, error) { return nil, nil }

// Sending does nothing.
func (NoRecords) Sending(context.Context, string, Ref) error { return nil }

// Acked does nothing.
func (NoRecords) Acked(string, Ref, string) {}

// Deleted does nothing.
func (NoRecords) Deleted(string, Ref) {}

// Forget does nothing.
func (NoRecords) Forget(string) {}

// Nodes is nothing.
func (NoRecords) Nodes() []string { return nil }

// Defaults of KubeEdge.
const (
	DefaultKeepaliveInterval = 30 * time.Second
	DefaultNodeLimit         = 500
)

// Options are what a Hub is made of. Downstream and Upstream are needed.
type Options struct {
	Downstream Downstream
	Upstream   Upstream
	// Records are those of upstream's edges; nil keeps none.
	Records Records
	// KubeCA is the CA of the Kubernetes API in PEM, which edges ask for.
	KubeCA []byte
	// NodeLimit is how many nodes may be connected at the same time.
	NodeLimit int
	// KeepaliveInterval is how long a node may be silent.
	KeepaliveInterval time.Duration
	// WriteTimeout is how long a write may take; zero takes the link's own.
	WriteTimeout time.Duration
	// MaxMessage is the largest message in bytes, both ways; zero takes the link's own.
	MaxMessage int64
	// LegacyCertificates lets every node in with the one certificate that edges up to v1.15 have. It tells nothing of
	// the node: anyone who has it may claim any name.
	LegacyCertificates bool
	// Gate decides further which certificates may speak for a node; nil lets all in.
	Gate Gate
	// Duplicate is told of two devices that use the certificate of one node, each time that one of them comes in the
	// place of the other; nil: only the log is.
	Duplicate func(ctx context.Context, node, message string)
	// Features are those offered to edges of ours.
	Features wire.Features
	// Registry takes the metrics; nil is no metrics.
	Registry prometheus.Registerer
}

// Hub holds the sessions. Make it with New; it serves until the context of the server that it is asked for ends.
type Hub struct {
	opts    Options
	metrics *metrics
	kinds   kinds
	refused refusedLog
	clones  clones
	// doubtful bounds what nodes cause at the API server by objects that they name.
	doubtful limiters
	// epoch is what moments are counted from that sessions keep as numbers: by the monotonic clock, so that setting the
	// wall clock ends no session and renews no lease early. It is long before the first.
	epoch time.Time

	mu       sync.Mutex
	sessions map[string]*session
	serving  int
	closed   bool
}

// New makes a hub without connections.
func New(opts Options) (*Hub, error) {
	if opts.Downstream == nil || opts.Upstream == nil {
		return nil, fmt.Errorf("cloudhub needs a Downstream and an Upstream")
	}
	if opts.Records == nil {
		opts.Records = NoRecords{}
	}
	if opts.NodeLimit <= 0 {
		opts.NodeLimit = DefaultNodeLimit
	}
	if opts.KeepaliveInterval <= 0 {
		opts.KeepaliveInterval = DefaultKeepaliveInterval
	}
	h := &Hub{opts: opts, sessions: map[string]*session{}, epoch: time.Now().Add(-24 * time.Hour)}
	h.metrics = newMetrics(h)
	if opts.Registry != nil {
		if err := opts.Registry.Register(h.metrics); err != nil {
			return nil, fmt.Errorf("register cloudhub's metrics: %w", err)
		}
	}
	return h, nil
}

// moment is a time as a number, and at the time of one.
func (h *Hub) moment(t time.Time) int64  { return int64(t.Sub(h.epoch)) }
func (h *Hub) at(moment int64) time.Time { return h.epoch.Add(time.Duration(moment)) }

// Run ends silent sessions and renews leases, until its context ends; then it ends all sessions and waits for them.
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

// recordsPeriod is how often records of nodes that are gone are looked for.
const recordsPeriod = 10 * time.Minute

// forgetGone drops what is recorded of nodes that are no more, until the context ends.
func (h *Hub) forgetGone(ctx context.Context) {
	tick := time.NewTicker(time.Second) // often until there is something to look at
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

// forgetGoneNow does that once; it reports whether there are records. A node that is connected may just not be
// registered yet: Disconnect tells of its end.
func (h *Hub) forgetGoneNow(ctx context.Context) bool {
	nodes := h.opts.Records.Nodes()
	for _, node := range nodes {
		if ctx.Err() == nil && h.session(node) == nil {
			h.forgetIfGone(node)
		}
	}
	return len(nodes) > 0
}

// forgetIfGone drops what is recorded of a node that has no object.
func (h *Hub) forgetIfGone(node string) {
	object, err := h.opts.Downstream.Object(node, nodeKey(node))
	if err == nil && object == nil {
		klog.V(2).InfoS("Records of a deleted node dropped", "node", node)
		h.opts.Records.Forget(node)
	}
}

// shutdown ends all sessions, and takes no more.
func (h *Hub) shutdown() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	all := h.all()
	for _, s := range all {
		s.end(wire.CloseGoingAway, "cloudcore stops")
	}
	for _, s := range all {
		<-s.done
	}
}

func (h *Hub) all() []*session {
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

// Changed tells that an object of a node is new, changed or gone. It never blocks; a node that is not connected
// here is no matter.
func (h *Hub) Changed(node string, key resource.Key) {
	if s := h.session(node); s != nil {
		s.changed(key)
	}
}

// Holds tells that a node was found to hold an object, whatever was sent to it: if it is not to have it, it is told to
// delete it. What is more than a node can hold is dropped. It never blocks.
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

// Disconnect ends a node's session. What is recorded of the node goes if its object is gone, too.
func (h *Hub) Disconnect(node, reason string) {
	h.clones.forget(node)
	if s := h.session(node); s != nil {
		s.dismissed.Store(true)
		s.end(wire.ClosePolicy, reason)
	}
}

// Connected are the nodes with a session, in no order.
func (h *Hub) Connected() []string {
	all := h.all()
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = s.node
	}
	return names
}

// Health says what is wrong with the hub, or nothing.
func (h *Hub) Health() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return fmt.Errorf("cloudhub stops")
	case h.serving == 0:
		return fmt.Errorf("cloudhub listens on no address")
	}
	return nil
}

// listening counts a server while it serves.
func (h *Hub) listening(n int) {
	h.mu.Lock()
	h.serving += n
	h.mu.Unlock()
}

// waitForOlder is how long a newer connection waits for the requests of the older one to end.
const waitForOlder = 30 * time.Second

// register puts a session in the place of its node. When there is no room, or the hub stops, it says so.
func (h *Hub) register(s *session) (older *session, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, fmt.Errorf("cloudcore stops")
	}
	older = h.sessions[s.node]
	if older == nil && len(h.sessions) >= h.opts.NodeLimit {
		return nil, h.full()
	}
	h.sessions[s.node] = s
	return older, nil
}

func (h *Hub) full() error {
	return fmt.Errorf("%d nodes are connected to this cloudcore, which is its limit: raise "+
		"modules.cloudHub.nodeLimit, or run another cloudcore", h.opts.NodeLimit)
}

// unregister takes a session out, if a newer one has not taken its place.
func (h *Hub) unregister(s *session) {
	h.mu.Lock()
	if h.sessions[s.node] == s {
		delete(h.sessions, s.node)
	}
	h.mu.Unlock()
}

// Serve runs a session on a link whose node is known to be the one that it says, until the link ends; or until the
// certificate does that said so, if until is not zero: TLS looks at certificates only when a link begins.
func (h *Hub) Serve(ctx context.Context, node string, until time.Time, conn wire.Conn) {
	if s := h.open(ctx, node, until, conn); s != nil {
		s.run()
	}
}

// open makes the session of a link, and waits for an older one of its node to end. It is nil when there is no room; the
// link is closed then. Else run is to be called, best in a goroutine that has done nothing before: its stack stays as
// long as the link.
func (h *Hub) open(ctx context.Context, node string, until time.Time, conn wire.Conn) *session {
	s := newSession(h, node, conn)
	if !until.IsZero() {
		s.expire = time.AfterFunc(time.Until(until), func() {
			s.end(wire.ClosePolicy,
				fmt.Sprintf("the certificate of this connection ended at %s: connect with a newer one, or join again",
					until.UTC().Format(time.RFC3339)))
		})
	}
	s.detach = context.AfterFunc(ctx, func() { s.end(wire.CloseGoingAway, "cloudcore stops") })
	older, err := h.register(s)
	if err != nil {
		h.metrics.refused.WithLabelValues("limit").Inc()
		klog.InfoS("Node refused", "node", node, "remote", conn.RemoteAddr(), "err", err)
		s.end(wire.CloseTryLater, err.Error())
		<-s.closed
		s.release()
		return nil
	}
	if older != nil {
		older.end(wire.CloseReplaced, fmt.Sprintf("a newer connection of %s from %s took over", node,
			conn.RemoteAddr()))
		timer := time.NewTimer(waitForOlder)
		select {
		case <-older.done:
		case <-timer.C:
			klog.InfoS("Requests of an older connection do not end; going on beside them", "node", node)
		}
		timer.Stop()
	}
	return s
}

// kubeCAAnswer answers an edge that asks for the CA of the API.
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

// ref is what the records need to know of an object.
func (h *Hub) ref(key resource.Key, uid types.UID, rv string) Ref {
	apiVersion, kind := h.kinds.of(key.Type)
	return Ref{Key: key, UID: uid, APIVersion: apiVersion, Kind: kind, ResourceVersion: rv}
}
