package edgecontroller

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/sessions"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/slots"
)

// access is what each part needs.
type access struct {
	// own acts as cloudcore itself, AsNode as the node of the context.
	own, asNode kubernetes.Interface
	caches      nodeCaches
	sessions    *sessions.Sessions
	// timeout limits the time for one change of a Node.
	timeout time.Duration
}

// nodeCaches is what the parts need from the caches of the API server's objects. They must not be modified.
type nodeCaches interface {
	// Node returns a Node with EdgeLabel, or nil. AllNodes lists them, and NodesAt the names of those whose kubelet API
	// is reached at an address and port.
	Node(name string) *v1.Node
	AllNodes() []*v1.Node
	NodesAt(address string, port int32) []string
	// Pod returns a pod of an edge node, which may be trimmed, or nil. PodsOf lists those of a node.
	Pod(namespace, name string) *v1.Pod
	PodsOf(node string) []*v1.Pod
}

// nodeParts are the parts that care for Nodes and for the fate of their pods.
type nodeParts struct {
	*endpoints
	*duplicates
	tolerations *tolerations
	readiness   *readiness
	instances   *instances
	annotator   *annotator
	hub         nodeHub // set by start
}

// nodeHub is what the parts need from the hub.
type nodeHub interface {
	// Disconnect ends a node's session.
	Disconnect(node, reason string)
	instanceHub
}

// nodeOptions configures nodeParts. All fields must be set, but LocalIP.
type nodeOptions struct {
	access
	// whole returns the whole of a pod that may be trimmed.
	whole func(ctx context.Context, pod *v1.Pod) (*v1.Pod, error)
	// current reports whether the API server has a pod's newest status, as far as its node has reported.
	current func(node string, uid types.UID) bool
	// slots limits how many requests are made for nodes at a time.
	slots slots.Semaphore
	// localIP is this cloudcore's address for CloudcoreAnnotation. If it is empty, nodes get no annotation.
	localIP string
	// patches counts the patches of tolerations by outcome.
	patches *prometheus.CounterVec
}

func newNodeParts(o nodeOptions) *nodeParts {
	return &nodeParts{
		endpoints:   newEndpoints(o.access),
		duplicates:  newDuplicates(o.access),
		tolerations: newTolerations(o.access, o.whole, o.patches),
		readiness:   newReadiness(o.access, o.current),
		instances:   newInstances(o.access),
		annotator:   &annotator{access: o.access, slots: o.slots, localIP: o.localIP},
	}
}

// start sets the hub, and the context with which all goroutines end; spawn starts them. It must return before run.
func (p *nodeParts) start(ctx context.Context, hub nodeHub, spawn func(func())) {
	p.endpoints.start(ctx, spawn)
	p.instances.start(hub)
	p.annotator.start(ctx, spawn)
	p.hub = hub
}

// run works until the context ends.
func (p *nodeParts) run(ctx context.Context, spawn func(func())) {
	p.tolerations.Run(ctx, spawn)
	p.readiness.Run(ctx, spawn)
	p.instances.Run(ctx, spawn)
	p.duplicates.Run(ctx, spawn)
	p.endpoints.Run(ctx, spawn)
}

// connected begins a session of a node.
func (p *nodeParts) connected(node string) {
	p.readiness.nodeChanged(p.readiness.caches.Node(node))
	p.instances.Keys.Add(node)
	p.duplicates.connected(node)
	p.annotator.connected(node)
}

// inventoried must be called when a node has said which statuses of its pods the API server has.
func (p *nodeParts) inventoried(node string) { p.readiness.nodeChanged(p.readiness.caches.Node(node)) }

// podChanged takes a pod that is new or changed.
func (p *nodeParts) podChanged(now *v1.Pod) {
	p.tolerations.podChanged(now)
	p.readiness.podChanged(now)
}

// nodeChanged takes a change of a Node; old is nil for a new one, now for a deleted one.
func (p *nodeParts) nodeChanged(old, now *v1.Node) {
	p.endpoints.endpointChanged(old, now)
	switch {
	case now == nil:
		p.hub.Disconnect(old.Name, "the node was deleted, or no longer has the label "+marks.EdgeLabel)
		p.duplicates.forget(old.Name)
		return
	case old != nil && old.UID != now.UID:
		p.hub.Disconnect(old.Name, "the node was deleted and registered again")
	}
	p.instances.nodeChanged(old, now)
	p.duplicates.nodeChanged(old, now)
	if old == nil || !nodeIsReady(old) {
		p.readiness.nodeChanged(now)
	}
	if old == nil || keepsEvictions(old.Annotations) != keepsEvictions(now.Annotations) ||
		reachable(old) && !reachable(now) {
		p.tolerations.nodeChanged(now.Name)
	}
}
