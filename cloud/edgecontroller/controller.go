package edgecontroller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/ratelimit"
	"github.com/edgecore-io/edgecore/pkg/retry"
	"github.com/edgecore-io/edgecore/pkg/shares"
)

// CloudcoreAnnotation on a Node is the address of the cloudcore that the node is connected to.
const CloudcoreAnnotation = "cloudcore"

// Defaults of Options.
const (
	DefaultRequestTimeout = 15 * time.Second // edges give up after 20 s
	DefaultNodeQPS        = 50
	// DefaultNodeBurst is enough to start 110 pods at once, the most that a node runs: each pod takes one token, two
	// statuses and four events.
	DefaultNodeBurst = 1000
)

const annotateDelay = time.Second

// Options configures a Controller.
type Options struct {
	Clients Clients
	// LocalIP is this cloudcore's address for CloudcoreAnnotation. If it is empty, nodes get no annotation.
	LocalIP string
	// RequestTimeout limits the time for one request of a node, all waiting included; 0 is the default. A request that
	// has not begun after two thirds of it is dropped.
	RequestTimeout time.Duration
	// NodeQPS and NodeBurst limit a node's requests; 0 is the default. A request over the limit waits; if it would wait
	// longer than RequestTimeout, the answer is TooManyRequests.
	NodeQPS   float64
	NodeBurst int
	// Permit returns an error if a node may not make requests now. It is called right before a request is carried out;
	// a refused request gets no answer. nil permits all.
	Permit func(ctx context.Context, node string) error
	// NodeLabels returns labels that a Node gets at registration in addition to EdgeLabel; nil is none.
	NodeLabels func(node string) map[string]string
	// Registry registers the metrics; nil is none.
	Registry prometheus.Registerer
}

func (o Options) withDefaults() Options {
	if o.RequestTimeout <= 0 {
		o.RequestTimeout = DefaultRequestTimeout
	}
	if o.NodeQPS <= 0 {
		o.NodeQPS = DefaultNodeQPS
	}
	if o.NodeBurst <= 0 {
		o.NodeBurst = DefaultNodeBurst
	}
	return o
}

// Controller implements cloudhub.Upstream and cloudhub.Downstream. New makes it; it must be given to the hub and
// started before the hub takes its first connection.
type Controller struct {
	options  Options
	clients  Clients
	caches   *caches
	sessions *sessions
	statuses *statuses
	podLists *podLists
	recent   *recentChanges
	encoded  encodings
	contents *contents
	metrics  *metrics

	requests, leases, confirms, wholeReads semaphore
	// wholeSent are the bytes of large pods that are read, or on their way to nodes.
	wholeSent *shares.Budget[string]

	tolerations *tolerations
	readiness   *readiness
	instances   *instances
	duplicates  *duplicates

	statusRequests *statusRequests
	// room knows which pods are withheld from their nodes, and notices says so in events.
	room    *podRoom
	notices *podNotices
	// decideRoom has the room of a node decided about after some time; roomDecisions are these nodes.
	decideRoom    func(node string, after time.Duration)
	roomDecisions keyQueue
	// fullNodes says in events which nodes have no room for all of their pods.
	fullNodes *fullNodes
	// podFetches are the nodes with pods that the cache lacks.
	podFetches keyQueue

	table map[requestName]requestType

	tunnels Tunnels
	// cloudcores reports whether an address is another cloudcore's.
	cloudcores   func(address string) bool
	tunnelEvents *ratelimit.Limiter[string]
	// endpoints are the nodes whose endpoint is to be written, and endpointWrites limits how often.
	endpoints      *keyQueue
	endpointWrites *ratelimit.Limiter[string]
	takeovers      *rate.Limiter

	// Set by Start.
	hub    Hub
	ctx    context.Context
	filled atomic.Bool
	owned  sync.WaitGroup
}

var (
	_ cloudhub.Downstream = (*Controller)(nil)
	_ cloudhub.Upstream   = (*Controller)(nil)
)

// New makes a controller. It does nothing before Start.
func New(options Options) (*Controller, error) {
	options = options.withDefaults()
	sessions := newSessions(options.NodeQPS, options.NodeBurst)
	caches, err := newCaches(options.Clients, sessions.connectedHere)
	if err != nil {
		return nil, err
	}
	c := &Controller{
		options:    options,
		clients:    options.Clients,
		caches:     caches,
		sessions:   sessions,
		statuses:   newStatuses(),
		podLists:   newPodLists(),
		recent:     newRecentChanges(),
		encoded:    newEncodings(),
		contents:   newContents(),
		room:       newPodRoom(),
		requests:   make(semaphore, maxRequests),
		leases:     make(semaphore, maxLeases),
		confirms:   make(semaphore, maxConfirms),
		wholeReads: make(semaphore, maxWholeReads),
		wholeSent:  shares.NewBudget[string](wholeBytes, wholeNodeBytes),
		tunnels:    noTunnels{},
		cloudcores: func(string) bool { return false },

		tunnelEvents:   ratelimit.New[string](rate.Every(tunnelEventEvery), 1),
		endpointWrites: ratelimit.New[string](rate.Every(endpointEvery), 1),
		takeovers:      rate.NewLimiter(takeoverRate, takeoverRate),
	}
	c.metrics = newMetrics(c.room)
	if options.Registry != nil {
		if err := c.metrics.register(options.Registry); err != nil {
			return nil, fmt.Errorf("register the metrics of edgecontroller: %w", err)
		}
	}
	c.tolerations, c.readiness, c.table = newTolerations(c), newReadiness(c), c.requestTypes()
	c.instances, c.duplicates, c.statusRequests = newInstances(c), newDuplicates(c), newStatusRequests(c)
	c.notices = newPodNotices(c)
	c.fullNodes = newFullNodes(c)
	c.roomDecisions = newKeyQueue("node", func(_ context.Context, node string) error {
		c.decided(node)
		return nil
	}, "Room of a node's pods not decided about")
	c.decideRoom = c.roomDecisions.queue.AddAfter
	c.endpoints = newEndpoints(c)
	c.podFetches = newKeyQueue("node", c.fetchPods, "Pods of a new edge node not read; it does not get them yet")
	return c, nil
}

// Start fills the caches, and returns when they have synced: only then may the hub take connections. Its goroutines end
// with the context; Wait waits for them.
func (c *Controller) Start(ctx context.Context, hub Hub) error {
	c.hub, c.ctx = hub, ctx
	if err := c.watch(); err != nil {
		return fmt.Errorf("watch the API server's objects: %w", err)
	}
	c.tolerations.run(ctx, c.owned.Go)
	c.readiness.run(ctx, c.owned.Go)
	c.instances.run(ctx, c.owned.Go)
	c.duplicates.run(ctx, c.owned.Go)
	c.statusRequests.run(ctx, c.owned.Go)
	c.endpoints.run(ctx, c.owned.Go)
	c.notices.run(ctx, c.owned.Go)
	c.roomDecisions.run(ctx, c.owned.Go)
	c.fullNodes.run(ctx, c.owned.Go)
	c.podFetches.run(ctx, c.owned.Go)
	began := time.Now()
	if err := c.caches.start(ctx); err != nil {
		return err
	}
	c.room.start()
	c.restoreEndpoints()
	c.filled.Store(true)
	pods, edgePods := c.caches.pods.count()
	klog.InfoS("Caches filled", "pods", pods, "edgePods", edgePods,
		"edgeNodes", len(c.caches.nodes.GetStore().ListKeys()), "took", time.Since(began))
	return nil
}

// Filled reports whether the caches have synced.
func (c *Controller) Filled() bool { return c.filled.Load() }

// Wait returns when all goroutines of Start have ended. Cancel Start's context first.
func (c *Controller) Wait() {
	c.caches.wait()
	c.owned.Wait()
}

// Connected implements cloudhub.Upstream.
func (c *Controller) Connected(_ context.Context, node, protocol string) {
	capable := c.sessions.connected(node, protocol)
	c.statuses.connected(node, capable)
	c.podLists.connected(node)
	c.caches.pods.nodeChanged(node)
	if capable && c.filled.Load() {
		for _, s := range c.servicesFor(c.caches.podsOf(node)) {
			c.hub.Changed(node, serviceKey(s))
		}
	}
	c.readiness.nodeChanged(c.caches.node(node))
	c.instances.queue.Add(node)
	c.duplicates.connected(node)
	c.roomChanged(c.room.connected(node))
	c.notices.add(c.room.withheldOn(node))
	c.fullNodes.queue.Add(node)
	if c.options.LocalIP != "" && c.ctx.Err() == nil {
		c.owned.Go(func() { c.annotate(c.ctx, node, annotateDelay) })
	}
}

// Disconnected implements cloudhub.Upstream.
func (c *Controller) Disconnected(node, _ string) {
	// The list goes first: without the session, the cache may lack pods that it has.
	c.podLists.disconnected(node)
	c.sessions.disconnected(node)
	c.statuses.disconnected(node)
	c.caches.pods.nodeChanged(node)
}

// annotate writes the address of this cloudcore into a Node, in up to three tries. It does nothing if no device's Node
// is known: registration writes it, and a Node of another kind is left alone.
func (c *Controller) annotate(ctx context.Context, node string, delay time.Duration) {
	if n := c.caches.node(node); n == nil || n.Annotations[CloudcoreAnnotation] == c.options.LocalIP {
		return
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{CloudcoreAnnotation: c.options.LocalIP}},
	})
	for try := 0; err == nil; try++ {
		err = func() error {
			leave, err := c.requests.acquire(ctx)
			if err != nil {
				return err
			}
			defer leave()
			ctx, cancel := context.WithTimeout(withNode(ctx, node), c.options.RequestTimeout)
			defer cancel()
			_, err = c.clients.AsNode.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch,
				metav1.PatchOptions{})
			return err
		}()
		if err == nil || apierrors.IsNotFound(err) || errors.Is(ctx.Err(), context.Canceled) {
			return
		}
		if try == 2 {
			break
		}
		retry.Sleep(ctx, time.Duration(1+try)*delay)
		err = ctx.Err()
	}
	klog.V(1).InfoS("Node not annotated with the cloudcore that it is connected to", "node", node,
		"cloudcore", c.options.LocalIP, "err", err)
}
