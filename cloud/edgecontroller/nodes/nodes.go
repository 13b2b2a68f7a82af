// Package nodes cares for Node objects and for the fate of their pods: it keeps pods on nodes that are offline, makes
// those of nodes that have returned Ready again, writes which run of a device's agent connected last and whether two
// devices use one certificate, and writes into Nodes where callers reach the kubelet APIs of nodes.
package nodes

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/evictions"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/sessions"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/slots"
)

// Access is what each part needs.
type Access struct {
	// Own acts as cloudcore itself, AsNode as the node of the context.
	Own, AsNode kubernetes.Interface
	Caches      Caches
	Sessions    *sessions.Sessions
	// Timeout limits the time for one change of a Node.
	Timeout time.Duration
}

// Caches is what the parts need from the caches of the API server's objects. They must not be modified.
type Caches interface {
	// Node returns a Node with EdgeLabel, or nil. AllNodes lists them, and NodesAt the names of those whose kubelet API
	// is reached at an address and port.
	Node(name string) *v1.Node
	AllNodes() []*v1.Node
	NodesAt(address string, port int32) []string
	// Pod returns a pod of an edge node, which may be trimmed, or nil. PodsOf lists those of a node.
	Pod(namespace, name string) *v1.Pod
	PodsOf(node string) []*v1.Pod
}

// Parts are the parts that care for Nodes and for the fate of their pods.
type Parts struct {
	*Endpoints
	*Duplicates
	tolerations *tolerations
	readiness   *readiness
	instances   *instances
	annotator   *annotator
	hub         Hub // set by Start
}

// Hub is what the parts need from the hub.
type Hub interface {
	// Disconnect ends a node's session.
	Disconnect(node, reason string)
	instanceHub
}

// Options configures Parts. All fields must be set, but LocalIP.
type Options struct {
	Access
	// Whole returns the whole of a pod that may be trimmed.
	Whole func(ctx context.Context, pod *v1.Pod) (*v1.Pod, error)
	// Current reports whether the API server has a pod's newest status, as far as its node has reported.
	Current func(node string, uid types.UID) bool
	// Slots limits how many requests are made for nodes at a time.
	Slots slots.Semaphore
	// LocalIP is this cloudcore's address for CloudcoreAnnotation. If it is empty, nodes get no annotation.
	LocalIP string
	// Patches counts the patches of tolerations by outcome.
	Patches *prometheus.CounterVec
}

// New makes the parts. Start and Run must be called.
func New(o Options) *Parts {
	return &Parts{
		Endpoints:   newEndpoints(o.Access),
		Duplicates:  newDuplicates(o.Access),
		tolerations: newTolerations(o.Access, o.Whole, o.Patches),
		readiness:   newReadiness(o.Access, o.Current),
		instances:   newInstances(o.Access),
		annotator:   &annotator{Access: o.Access, slots: o.Slots, localIP: o.LocalIP},
	}
}

// Start sets the hub, and the context with which all goroutines end; spawn starts them. It must return before Run.
func (p *Parts) Start(ctx context.Context, hub Hub, spawn func(func())) {
	p.Endpoints.start(ctx, spawn)
	p.instances.start(hub)
	p.annotator.start(ctx, spawn)
	p.hub = hub
}

// Run works until the context ends.
func (p *Parts) Run(ctx context.Context, spawn func(func())) {
	p.tolerations.Run(ctx, spawn)
	p.readiness.Run(ctx, spawn)
	p.instances.Run(ctx, spawn)
	p.Duplicates.Run(ctx, spawn)
	p.Endpoints.Run(ctx, spawn)
}

// Connected begins a session of a node.
func (p *Parts) Connected(node string) {
	p.readiness.nodeChanged(p.readiness.Caches.Node(node))
	p.instances.Keys.Add(node)
	p.Duplicates.connected(node)
	p.annotator.connected(node)
}

// Inventoried must be called when a node has said which statuses of its pods the API server has.
func (p *Parts) Inventoried(node string) { p.readiness.nodeChanged(p.readiness.Caches.Node(node)) }

// StatusStored takes a pod whose newest status the API server has now.
func (p *Parts) StatusStored(pod *v1.Pod) { p.readiness.podChanged(pod) }

// PodChanged takes a pod that is new or changed.
func (p *Parts) PodChanged(now *v1.Pod) {
	p.tolerations.podChanged(now)
	p.readiness.podChanged(now)
}

// NodeChanged takes a change of a Node; old is nil for a new one, now for a deleted one.
func (p *Parts) NodeChanged(old, now *v1.Node) {
	p.Endpoints.endpointChanged(old, now)
	switch {
	case now == nil:
		p.hub.Disconnect(old.Name, "the node was deleted, or no longer has the label "+marks.EdgeLabel)
		p.Duplicates.forget(old.Name)
		return
	case old != nil && old.UID != now.UID:
		p.hub.Disconnect(old.Name, "the node was deleted and registered again")
	}
	p.instances.nodeChanged(old, now)
	p.Duplicates.nodeChanged(old, now)
	if old == nil || !IsReady(old) {
		p.readiness.nodeChanged(now)
	}
	if old == nil || evictions.KeepsEvictions(old.Annotations) != evictions.KeepsEvictions(now.Annotations) ||
		reachable(old) && !reachable(now) {
		p.tolerations.nodeChanged(now.Name)
	}
}
