// Package devicecontroller connects the API objects of devices with the nodes that the devices are bound to: it decides
// which Devices and DeviceModels each node must have, and writes the values and states that nodes report.
//
// It promises:
//
//   - A node gets the devices whose spec.nodeName names it, and their models, and no others.
//   - A desired value that the model forbids (read-only, wrong type, out of range) is sent as withheld: the
//     node applies it to nothing. The Device gets an event that says why. While the model cannot be read, the device is
//     not sent.
//   - A node can write only the statuses of devices that are bound to it, and only properties that their specs have.
//   - A node gets at most 16 MiB of devices and models, the oldest devices first, and none of more than 512 KiB.
//   - A report is answered after it is written, or with an error while the API server refuses it. The newest value of
//     each property wins: a value never replaces one that its device reported later, whichever cloudcore writes it.
//   - A device causes at most one write per Options.WriteInterval, a node at most Options.NodeWrites a second. Reports
//     that come faster are merged.
//   - Of a report that waits for the API server, only the values of the spec's properties stay in memory, and what its
//     answer needs. Reports count in the rate limit of their node, large ones as several requests.
//
// Without the CRDs in the API it waits for them; nothing else of cloudcore waits for it.
package devicecontroller

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/lru"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// Defaults of Options.
const (
	DefaultWriteInterval = time.Second
	DefaultNodeWrites    = 20
)

// Options configures a Controller. Objects and Client are required.
type Options struct {
	// Objects reads and writes devices, Client writes events.
	Objects dynamic.Interface
	Client  kubernetes.Interface
	// WriteInterval is the shortest time between two writes of one device's status.
	WriteInterval time.Duration
	// NodeWrites limits the status writes a second that one node's reports cause; five seconds' worth at once.
	NodeWrites float64
	// Wait, if not nil, waits until a node may make n requests more, within its rate limit. It returns an error when
	// ctx ends before.
	Wait func(ctx context.Context, node string, n int) error
	// Registry registers the metrics; nil is none.
	Registry prometheus.Registerer
}

// Hub is what the controller needs from cloudhub.
type Hub interface {
	// Changed marks an object of a node as new, changed or deleted. It never blocks.
	Changed(node string, key resource.Key)
	// Send queues a message for a node. It never blocks, and reports whether the node is connected here.
	Send(node string, m *model.Message) bool
}

// maxGone is how many deleted objects are remembered.
const maxGone = 1000

// fillPatience is how long the inventories of nodes wait for the caches to fill. Without the CRDs or the rights they
// never do.
const fillPatience = 2 * time.Minute

// maxLeft limits the objects that are looked up again when the caches fill late.
const maxLeft = 100000

// Controller implements cloudhub.Downstream and cloudhub.Upstream for devices. Make it with New, and Start it before
// the hub takes its first connection.
type Controller struct {
	caches  *caches
	writer  *writer
	events  *events
	metrics *metrics
	wait    func(ctx context.Context, node string, n int) error
	// gone has the last state of devices and models that were deleted lately, by UID.
	gone *lru.Cache

	// Set by Start.
	hub   Hub
	ctx   context.Context
	owned sync.WaitGroup
	// patient is until when the caches may take to fill before devices count as not served.
	patient time.Time

	mu sync.Mutex
	// left are the objects that nodes keep because the caches were not filled, at most maxLeft.
	left map[change]struct{}
	// sessions are the connected nodes; the value reports whether the node runs edgecore.
	sessions map[string]bool
	// excluded are the devices that exceed the limit of their node, by node and UID.
	excluded map[string]map[types.UID]bool
}

var (
	_ cloudhub.Downstream = (*Controller)(nil)
	_ cloudhub.Upstream   = (*Controller)(nil)
)

// New makes a controller. It does nothing before Start.
func New(o Options) (*Controller, error) {
	if o.WriteInterval <= 0 {
		o.WriteInterval = DefaultWriteInterval
	}
	if o.NodeWrites <= 0 {
		o.NodeWrites = DefaultNodeWrites
	}
	caches, err := newCaches(o.Objects)
	if err != nil {
		return nil, fmt.Errorf("devicecontroller: %w", err)
	}
	c := &Controller{
		caches:   caches,
		events:   newEvents(o.Client),
		metrics:  newMetrics(),
		wait:     o.Wait,
		gone:     lru.New(maxGone),
		sessions: map[string]bool{},
		left:     map[change]struct{}{},
		excluded: map[string]map[types.UID]bool{},
	}
	c.writer = newWriter(o, writerNeeds{
		Device: caches.device, Answer: c.answerReport, Repeats: c.repeats, StateChanged: c.stateChanged,
		Refused: c.refusedWrite, Metrics: c.metrics,
	})
	if o.Registry != nil {
		if err := c.metrics.register(o.Registry); err != nil {
			return nil, fmt.Errorf("register the metrics of devicecontroller: %w", err)
		}
	}
	return c, nil
}

// Start starts the watches, and returns at once. Its goroutines end with ctx; Wait waits for them.
func (c *Controller) Start(ctx context.Context, hub Hub) error {
	c.hub, c.ctx, c.patient = hub, ctx, time.Now().Add(fillPatience)
	if err := c.watch(); err != nil {
		return fmt.Errorf("watch devices: %w", err)
	}
	c.owned.Go(func() { c.caches.run(ctx) })
	c.owned.Go(func() { c.checkFirst(ctx) })
	c.owned.Go(func() { c.events.run(ctx) })
	c.owned.Go(func() { c.checkUnserved(ctx) })
	c.owned.Go(func() { c.writer.run(ctx) })
	return nil
}

// Wait returns when all goroutines of Start have ended. Cancel Start's context first.
func (c *Controller) Wait() { c.owned.Wait() }

// runsEdgecore reports whether a node is connected with an agent of ours, and whether it is connected at all.
func (c *Controller) runsEdgecore(node string) (ours, connected bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ours, connected = c.sessions[node]
	return ours, connected
}
