package edgecontroller

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/desired"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/keyqueue"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/lookups"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/nodes"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/requests"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/sessions"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/slots"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/statuses"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Defaults of Options.
const (
	DefaultRequestTimeout = 15 * time.Second // edges give up after 20 s
	DefaultNodeQPS        = 50
	// DefaultNodeBurst is enough to start 110 pods at once, the most that a node runs: each pod takes one token, two
	// statuses and four events.
	DefaultNodeBurst = 1000
)

// Options configures a Controller.
type Options struct {
	Clients impersonate.Clients
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
	// Endpoints writes into Nodes where callers reach the kubelet APIs of nodes.
	Endpoints *nodes.Endpoints

	requests *requests.Requests
	leases   *requests.Leases
	reviews  *requests.Reviews
	desired  *desired.Objects
	nodes    *nodes.Parts
	history  *caches.History

	options  Options
	caches   *caches.Caches
	sessions *sessions.Sessions
	lookups  *lookups.Lookups
	contents *lookups.Contents

	statuses       *statuses.Statuses
	statusRequests *statuses.Requests

	// podFetches are the nodes with pods that the cache lacks.
	podFetches keyqueue.Queue
	metrics    *metrics

	// Set by Start.
	hub   Hub
	owned sync.WaitGroup
}

var (
	_ cloudhub.Downstream = (*Controller)(nil)
	_ cloudhub.Upstream   = (*Controller)(nil)
)

// New makes a controller. It does nothing before Start.
func New(options Options) (*Controller, error) {
	options = options.withDefaults()
	clients := options.Clients
	sessions := sessions.New(options.NodeQPS, options.NodeBurst)
	cached, err := caches.New(clients, sessions.ConnectedHere)
	if err != nil {
		return nil, err
	}
	asked := lookups.New(clients.Own)
	contents := lookups.NewContents(cached, asked)
	objects := desired.New(clients, cached, sessions, asked, contents)
	metrics := newMetrics(objects)
	if options.Registry != nil {
		if err := metrics.register(options.Registry); err != nil {
			objects.ShutDown()
			return nil, fmt.Errorf("register the metrics of edgecontroller: %w", err)
		}
	}
	requestSlots := make(slots.Semaphore, maxRequests)
	latest := statuses.New()
	c := &Controller{
		leases: &requests.Leases{
			AsNode:   clients.AsNode,
			Caches:   cached,
			Sessions: sessions,
			Slots:    make(slots.Semaphore, maxLeases),
			Timeout:  options.RequestTimeout,
		},
		reviews: &requests.Reviews{AsNode: clients.AsNode, Own: clients.Own},
		desired: objects,
		nodes: nodes.New(nodes.Options{
			Access: nodes.Access{
				Own:      clients.Own,
				AsNode:   clients.AsNode,
				Caches:   cached,
				Sessions: sessions,
				Timeout:  options.RequestTimeout,
			},
			Whole:   asked.Whole,
			Current: latest.Current,
			Slots:   requestSlots,
			LocalIP: options.LocalIP,
			Patches: metrics.tolerations,
		}),
		history:        &caches.History{Own: clients.Own, Caches: cached, Timeout: options.RequestTimeout},
		options:        options,
		caches:         cached,
		sessions:       sessions,
		lookups:        asked,
		contents:       contents,
		statuses:       latest,
		statusRequests: statuses.NewRequests(cached, latest, metrics.statusRequests),
		metrics:        metrics,
	}
	c.Endpoints = c.nodes.Endpoints
	c.requests = requests.New(requests.Options{
		AsNode:     clients.AsNode,
		Own:        clients.Own,
		Caches:     cached,
		Sessions:   sessions,
		Endpoints:  c.Endpoints,
		Whole:      asked.Whole,
		Content:    contents.Object,
		Slots:      requestSlots,
		Timeout:    options.RequestTimeout,
		QPS:        options.NodeQPS,
		Permit:     options.Permit,
		LocalIP:    options.LocalIP,
		NodeLabels: options.NodeLabels,
		Reported:   c.reported,
		Answered:   metrics.requests,
	})
	c.podFetches = keyqueue.New("node", c.fetchPods, "Pods of a new edge node not read; it does not get them yet")
	return c, nil
}

// startParts gives all parts the hub, and the context of Start.
func (c *Controller) startParts(ctx context.Context, hub Hub) {
	c.hub = hub
	c.lookups.Start(ctx)
	c.requests.Start(hub)
	c.desired.Start(ctx, hub)
	c.nodes.Start(ctx, hub, c.owned.Go)
	c.statusRequests.Start(hub)
}

// Start fills the caches, and returns when they have synced: only then may the hub take connections. Its goroutines end
// with the context; Wait waits for them.
func (c *Controller) Start(ctx context.Context, hub Hub) error {
	c.startParts(ctx, hub)
	if err := c.watch(); err != nil {
		return fmt.Errorf("watch the API server's objects: %w", err)
	}
	c.nodes.Run(ctx, c.owned.Go)
	c.statusRequests.Run(ctx, c.owned.Go)
	c.desired.Run(ctx, c.owned.Go)
	c.podFetches.Run(ctx, c.owned.Go)
	began := time.Now()
	if err := c.caches.Start(ctx); err != nil {
		return err
	}
	c.Endpoints.RestoreEndpoints()
	c.desired.CachesFilled()
	pods, edgePods := c.caches.Pods.Count()
	klog.InfoS("Caches filled", "pods", pods, "edgePods", edgePods,
		"edgeNodes", len(c.caches.Nodes.GetStore().ListKeys()), "took", time.Since(began))
	return nil
}

// Wait returns when all goroutines of Start have ended. Cancel Start's context first.
func (c *Controller) Wait() {
	c.caches.Wait()
	c.owned.Wait()
}

// Connected implements cloudhub.Upstream.
func (c *Controller) Connected(_ context.Context, node, protocol string) {
	capable := c.sessions.Connected(node, protocol)
	c.statuses.Connected(node, capable)
	c.desired.Connected(node, capable)
	c.caches.Pods.NodeChanged(node)
	c.nodes.Connected(node)
}

// Disconnected implements cloudhub.Upstream.
func (c *Controller) Disconnected(node, _ string) {
	c.desired.Disconnected(node)
	c.sessions.Disconnected(node)
	c.statuses.Disconnected(node)
	c.caches.Pods.NodeChanged(node)
}

// Inventoried handles the pods in a node's inventory. It returns the keys of pods whose status at the API server is not
// the last one that the node reported: the node must report them again. If only the cache was behind, the second report
// changes nothing.
func (c *Controller) Inventoried(_ context.Context, node string, pods []wire.Held) (report []string) {
	i := statuses.CompareInventory(c.caches, node, pods)
	c.desired.Inventoried(node, pods, i.Has)
	c.statuses.Inventoried(node, i.Pending, i.Last)
	for _, pod := range c.caches.PodsOf(node) {
		c.statusRequests.PodChanged(pod) // it may have changed since it was compared
	}
	c.nodes.Inventoried(node)
	return i.Report
}

// reported records that the API server stored a status that a node reported.
func (c *Controller) reported(node string, pod *v1.Pod) {
	if !c.sessions.Capable(node) {
		return
	}
	if c.statuses.Reported(node, pod.UID, statuses.StoredStatus(pod)) {
		c.nodes.StatusStored(pod)
	}
	if cached := c.caches.Pod(pod.Namespace, pod.Name); cached != nil {
		c.statusRequests.PodChanged(cached) // it may have changed before the answer came
	}
}

// fetchPods reads the pods of a node that became an edge node after the watch had brought them, in pages: each has a
// timeout of its own, and is in the cache when the next one is asked for.
func (c *Controller) fetchPods(_ context.Context, node string) error {
	if !c.caches.Pods.Lacks(node) {
		return nil
	}
	missing := 0
	for from := ""; ; {
		list, err := c.lookups.PodsOf(node, caches.PodPage, from)
		if err != nil {
			return fmt.Errorf("list the pods of node %s: %w", node, err)
		}
		missing = c.caches.Pods.Fill(node, list.Items)
		if from = list.Continue; from == "" {
			break
		}
	}
	if missing > 0 {
		return fmt.Errorf("%d pods of node %s: %w", missing, node, lookups.ErrPodsMissing)
	}
	return nil
}

// Limits on concurrent requests to the API server for nodes. Beyond what it handles in parallel, requests only wait
// there, time out and are repeated, so that a briefly slow API server would never recover. Here they wait before their
// time starts.
const (
	// maxRequests is for nodes' requests and reports, maxLeases for leases: neither waits for the other.
	maxRequests = 128
	maxLeases   = 32
)
