package cloudhub

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub/queue"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/retry"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// How nodes are served: KubeEdge's edgecores as KubeEdge's cloudcore does it (docs/wire.md, Delivery), this project's
// with more messages in flight.
var (
	kubeEdgePeer = queue.Options{
		Window:     1,
		Resend:     5 * time.Second,
		Tries:      5,
		Backoff:    5 * time.Second,
		MaxBackoff: 5 * time.Minute,
	}
	ourPeer = queue.Options{
		Window:     16,
		Resend:     15 * time.Second,
		Tries:      5,
		Backoff:    time.Second,
		MaxBackoff: time.Minute,
	}
)

// Rate limit for a node's messages. KubeEdge's edgecores send 30 messages a second, 60 at once.
const (
	readRate  = 500
	readBurst = 2000
)

// session is one node's link. The goroutine of run reads. pump writes, and runs only while there is something to write.
// States: it reads from the start; it sends objects once it knows what the peer holds (ready); it ends once, with the
// first reason given; done is closed when nothing of it runs any more and Upstream has learned of the end.
type session struct {
	hub      *Hub
	node     string
	conn     wire.Conn
	features wire.Features
	ctx      context.Context
	cancel   context.CancelFunc
	executor *keyedExecutor
	done     chan struct{}
	closed   chan struct{} // the link is closed
	work     sync.WaitGroup
	expire   *time.Timer // ends the session when the certificate expires; may be nil
	detach   func() bool // from the server's context

	began     time.Time
	kept      atomic.Int64 // when the last keepalive came; see Hub.moment
	dismissed atomic.Bool  // by Hub.Disconnect
	stalled   atomic.Bool  // the reader is paused
	tried     int64        // when a renewal of the lease was last tried, see Hub.moment; for Hub.sweep only
	renewal   atomic.Int32 // result of the last renewal
	doubtful  *rate.Limiter
	asked     wire.Recent // only for our edgecores, which never reuse an id

	mu      sync.Mutex
	queue   *queue.Queue
	begun   bool
	ready   bool
	waited  bool // gave up waiting for the inventory
	pumping bool
	// lookups counts lookups; looked are the finished ones. The newest began at lookedUp, which is zero once it
	// finishes.
	lookups, doubtfulLookups int
	lookedUp                 time.Time
	looked                   []lookup
	later                    []lookup                   // finished ones that another object must precede
	podsSent                 map[resource.Key]time.Time // when pods were sent last; only for KubeEdge's edgecores
	ended                    bool
	pendingInventory         *inventoryReply // the inventory that must be answered
	answers                  []answer
	volumes                  map[string]chan<- *model.Message
	wake                     *time.Timer
	wakeAt                   time.Time
	reason                   string
}

// answer is a message that is sent before all objects.
type answer struct {
	m       *model.Message
	written chan<- error // nil if nobody waits; otherwise it is buffered
}

func newSession(h *Hub, node string, conn wire.Conn) *session {
	now := time.Now()
	s := &session{
		hub:      h,
		node:     node,
		conn:     conn,
		features: conn.Features(),
		done:     make(chan struct{}),
		closed:   make(chan struct{}),
		began:    now,
	} // the first renewal is due at once
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.kept.Store(h.moment(now))
	opts := kubeEdgePeer
	if s.features.Inventory {
		opts = ourPeer
	}
	s.queue, s.doubtful = queue.New(opts), h.doubtful.forNode(node, h.limit.nodes)
	s.executor = newKeyedExecutor(s.handle)
	return s
}

// protocol returns the protocol name for Upstream.
func (s *session) protocol() string {
	if s.features.Inventory {
		return "edgecore/" + s.conn.Protocol()
	}
	return s.conn.Protocol()
}

// run serves the link until it ends. It and read keep little on their stacks: with many nodes, that memory adds up.
func (s *session) run() {
	if s.register() {
		// Connected comes first: what Upstream and Downstream answer for a node depends on its edgecore.
		if s.features.Tunnel {
			s.hub.opts.Tunnels.Connected(s.node, remoteIP(s.conn.RemoteAddr()), streamsOf(s.conn))
		}
		s.hub.opts.Upstream.Connected(s.ctx, s.node, s.protocol())
		s.work.Go(s.loadKnown)
		s.read()
	}
	s.finish()
}

// finish waits until nothing of an ended session runs, and calls Disconnected if Connected was called. The session
// keeps the node's place until then, so that a newer one waits for it.
func (s *session) finish() {
	defer close(s.done)
	<-s.closed
	s.release()
	s.executor.wait()
	s.work.Wait()
	defer s.hub.unregister(s)
	if s.dismissed.Load() && !s.features.Inventory {
		s.hub.forgetIfGone(s.node)
	}
	if s.begun {
		if s.features.Tunnel {
			s.hub.opts.Tunnels.Disconnected(s.node)
		}
		s.hub.opts.Upstream.Disconnected(s.node, s.reason)
		s.hub.metrics.addEnded(s)
		klog.V(2).InfoS("Node disconnected", "node", s.node, "reason", s.reason,
			"after", time.Since(s.began).Round(time.Millisecond))
	}
}

// release stops what could end the session.
func (s *session) release() {
	s.detach()
	if s.expire != nil {
		s.expire.Stop()
	}
}

// register records a new session; it returns false if the session ended before it began.
func (s *session) register() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.begun = true
	klog.V(2).InfoS("Node connected", "node", s.node, "remote", s.conn.RemoteAddr(), "protocol", s.protocol())
	s.hub.metrics.started(s)
	s.kept.Store(s.hub.moment(time.Now()))
	return true
}

// closeLink closes the link. Only the first reason counts. It does not wait.
func (s *session) closeLink(code int, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.ended, s.reason = true, reason
	if s.wake != nil {
		s.wake.Stop()
	}
	for _, a := range s.answers {
		if a.written != nil {
			a.written <- errEnded
		}
	}
	s.answers = nil
	for _, l := range append(s.looked, s.later...) {
		l.object.callDone()
	}
	s.looked, s.later = nil, nil
	s.cancel()
	s.executor.close()
	go func() {
		defer close(s.closed)
		_ = s.conn.Close(code, reason) // only the first close counts; another error cannot be reported
	}()
}

// errTooLate answers a request that did not start in time.
var errTooLate = errors.New("cloudcore did not start this request in time: cloudcore or the API server is overloaded")

var errEnded = errors.New("the link to the node ended")

// read reads messages until the link ends.
func (s *session) read() {
	rates := s.hub.reading.forNode(s.node, s.hub.limit.nodes)
	for {
		m, err := s.conn.Read()
		if err != nil {
			code, reason := wire.CloseCode(err)
			if reason == "" {
				reason = err.Error()
			}
			s.closeLink(code, reason)
			return
		}
		if s.ctx.Err() != nil {
			return
		}
		cost := s.receive(m)
		if pause := rates.ReserveN(time.Now(), cost).Delay(); pause > 0 {
			s.pauseReading(pause)
		}
	}
}

// pauseReading pauses reading; messages wait in the network.
func (s *session) pauseReading(pause time.Duration) {
	s.stalled.Store(true)
	retry.Sleep(s.ctx, pause)
	s.resumeReading()
}

// resumeReading notes that the reader reads again: messages that arrived meanwhile were not seen.
func (s *session) resumeReading() {
	if s.stalled.Swap(false) {
		s.kept.Store(s.hub.moment(time.Now()))
	}
}

// receive handles one message and leaves slow work to others. It returns how many messages it counts as in the node's
// rate limit.
func (s *session) receive(m *model.Message) (cost int) {
	what, why := classify(m, s.features)
	switch what {
	case keepalive:
		s.kept.Store(s.hub.moment(time.Now()))
	case volume:
		s.volumeAnswered(m)
	case ack:
		s.acked(m.Header.ParentID)
	case nack:
		s.refused(m)
	case batched:
		return s.takeBatch(m)
	case inventory, kubeCA, request:
		if why = s.repeated(m); why != "" {
			break
		}
		if what == inventory {
			return s.takeInventory(m)
		}
		s.executor.enqueue(m, nil, s.stall)
		s.resumeReading()
		return 1
	case dropped:
	}
	if why != "" {
		s.drop(m, why)
	}
	return 1
}

// repeated reports a request that came before. KubeEdge's edgecores resend one under its id if they get no answer.
func (s *session) repeated(m *model.Message) (why string) {
	if !s.features.Inventory {
		return ""
	}
	if s.asked.Has(m.Header.ID) {
		return "it came before"
	}
	s.asked.Add(m.Header.ID)
	return ""
}

func (s *session) stall() { s.stalled.Store(true) }

// The results of a lease renewal.
const (
	renewalDone = iota
	renewalUnderWay
	renewalFailed
)

// sweep ends the session of a silent node. For others it returns the lease, if cloudcore renews it.
func (s *session) sweep(now time.Time) (lease leaseState, ok bool) {
	if !s.sweepStart(now) || s.stalled.Load() {
		return lease, false
	}
	interval := s.hub.opts.KeepaliveInterval
	last := s.hub.timeOf(s.kept.Load())
	sign := "keepalive message"
	if s.features.Lease {
		sign = "sign of life"
		if heard := s.conn.Stats().LastReceived; heard.After(last) {
			last = heard
		}
	}
	if now.Sub(last) > interval {
		s.closeLink(wire.CloseSilent, fmt.Sprintf("no %s came for %v", sign, interval))
		return lease, false
	}
	renewal := s.renewal.Load()
	return leaseState{
		tried:  s.hub.timeOf(s.tried),
		heard:  last,
		failed: renewal == renewalFailed,
		busy:   renewal == renewalUnderWay,
	}, s.features.Lease
}

// renew renews the node's lease.
func (s *session) renew(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.tried = s.hub.moment(now)
	s.renewal.Store(renewalUnderWay)
	s.work.Go(func() {
		became := int32(renewalDone)
		if s.hub.opts.Upstream.Heartbeat(s.ctx, s.node) != nil {
			became = renewalFailed
		}
		s.renewal.Store(became)
	})
}

// sweepStart gives up waiting for the inventory. It reports whether the session is alive.
func (s *session) sweepStart(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.begun && !s.ended && s.features.Inventory && !s.ready && !s.waited && now.Sub(s.began) > inventoryWait {
		s.waited = true
		s.work.Go(s.startWithout)
	}
	return s.begun && !s.ended
}

// changed marks an object as changed.
func (s *session) changed(key resource.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue.Mark(key)
	s.kick()
}

// handle carries out one request and writes the answer, or gives it to the request's batch. It returns when the answer
// has been sent, so that a node that reads no answers gets no more requests done.
func (s *session) handle(r pendingRequest) {
	var reply *model.Message
	defer func() {
		if bad := recover(); bad != nil {
			klog.ErrorS(nil, "Handler of a node's request panicked", "node", s.node, "resource", r.Route.Resource,
				"operation", r.Route.Operation, "panic", bad, "stack", string(debug.Stack()))
			s.closeLink(wire.CloseInternal, "a request of this node failed: see cloudcore's log")
		}
		if r.batch != nil {
			r.batch.add(r, reply)
		}
	}()
	if s.ctx.Err() != nil {
		return
	}
	if reply = s.carryOut(r); reply == nil || r.batch != nil {
		return
	}
	if err := s.deliver(s.ctx, reply); err != nil {
		s.notDelivered(r.Message, err)
	}
}

// carryOut carries out one request and returns the answer, which may be nil. It skips a request that the node has
// stopped waiting for.
func (s *session) carryOut(r pendingRequest) *model.Message {
	m := r.Message
	ctx, cancel, ok := r.inTime(s.ctx, s.features)
	defer cancel()
	switch {
	case !ok:
		s.hub.metrics.expired.Inc()
		klog.V(2).InfoS("Request not started: the node no longer waits for its answer", "node", s.node,
			"resource", m.Route.Resource, "operation", m.Route.Operation,
			"after", time.Since(r.arrived).Round(time.Millisecond))
		return m.RespondError(sourceCloudHub, errTooLate)
	case m.Route.Resource == resourceKubeCA:
		return s.hub.kubeCAAnswer(m)
	}
	return s.hub.opts.Upstream.Handle(withPause(ctx, s.executor.pause), s.node, m)
}

// notDelivered answers a request with the error that its answer could not be sent.
func (s *session) notDelivered(request *model.Message, err error) {
	if s.ctx.Err() != nil {
		return
	}
	klog.InfoS("Answer cannot be sent", "node", s.node, "resource", request.Route.Resource, "err", err)
	_ = s.deliver(s.ctx, request.RespondError(sourceCloudHub, err)) // if the link ends meanwhile, nothing waits for it
}

// post queues a message before all objects; it reports whether there is room.
func (s *session) post(m *model.Message) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || len(s.answers) >= maxLate {
		return false
	}
	s.answers = append(s.answers, answer{m, nil})
	s.kick()
	return true
}

// deliver writes a message before all objects, and returns when it is written.
func (s *session) deliver(ctx context.Context, m *model.Message) error {
	written := make(chan error, 1)
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return errEnded
	}
	s.answers = append(s.answers, answer{m, written})
	s.kick()
	s.mu.Unlock()
	select {
	case err := <-written:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
