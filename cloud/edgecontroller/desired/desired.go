// Package desired knows what each node should have: the pods bound to it, the ConfigMaps and Secrets that those pods
// name, its Node object, and for our edgecores the services of its pods' namespaces. It passes changed keys (new,
// changed or deleted) to the hub, never content: the hub sends what the caches hold at the moment of sending. There are
// no counters that could go stale: which node has which ConfigMap is an index over the cached pods, and an entry
// disappears with the last pod that names it.
//
// A deletion is final on the edge, so it is never decided from a cache alone: a cache may be behind another
// cloudcore's. Object asks the API server before it reports an object deleted, and before it sends a pod whose deletion
// the node may have seen; podLists says what that costs. Pods for which a node has no room are withheld from it
// (podRoom).
package desired

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/keyqueue"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/lookups"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/podfacts"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/sessions"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/shares"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// errNotFilled is returned by Object before the caches have synced. Until then nothing may be decided, least of all
// that an object is gone.
var errNotFilled = errors.New("the caches of the API server's objects are not filled yet")

// Objects knows what each node should have.
type Objects struct {
	caches   *caches.Caches
	sessions *sessions.Sessions
	lookups  *lookups.Lookups
	contents *lookups.Contents
	asNode   kubernetes.Interface

	podLists *podLists
	services *serviceLinks
	// room knows which pods are withheld from their nodes, and notices says so in events.
	room    *podRoom
	notices *podNotices
	// decideRoom has the room of a node decided about after some time; roomDecisions are these nodes.
	decideRoom    func(node string, after time.Duration)
	roomDecisions keyqueue.Queue
	// fullNodes says in events which nodes have no room for all of their pods.
	fullNodes *fullNodes
	// wholeSent are the bytes of large pods that are read, or on their way to nodes.
	wholeSent *shares.Budget[string]

	// Set by Start.
	ctx context.Context
	hub Hub
	// filled is set once the caches have synced.
	filled atomic.Bool
}

// Hub is what Objects needs from the hub; see edgecontroller.Hub.
type Hub interface {
	Changed(node string, key resource.Key)
	StatusChanged(node string, key resource.Key)
}

// New makes objects. Start and Run must be called, and CachesFilled once the caches have synced.
func New(
	clients impersonate.Clients, caches *caches.Caches, sessions *sessions.Sessions, lookups *lookups.Lookups,
	contents *lookups.Contents,
) *Objects {
	d := &Objects{
		caches:    caches,
		sessions:  sessions,
		lookups:   lookups,
		contents:  contents,
		asNode:    clients.AsNode,
		podLists:  newPodLists(caches, lookups),
		room:      newPodRoom(),
		wholeSent: shares.NewBudget[string](wholeBytes, wholeNodeBytes),
	}
	d.notices = newPodNotices(clients.Own, caches, sessions, d.room)
	d.services = &serviceLinks{
		caches:   caches,
		sessions: sessions,
		lookups:  lookups,
		podLists: d.podLists,
		encoded:  newEncodings(),
	}
	d.roomDecisions = keyqueue.New("node", func(_ context.Context, node string) error {
		d.decided(node)
		return nil
	}, "Room of a node's pods not decided about")
	d.decideRoom = d.roomDecisions.Keys.AddAfter
	d.fullNodes = newFullNodes(clients.AsNode, sessions, d.notices)
	return d
}

// Start sets the hub. It must return before the caches are filled.
func (d *Objects) Start(ctx context.Context, hub Hub) {
	d.ctx, d.hub, d.services.hub = ctx, hub, hub
}

// Run works until the context ends.
func (d *Objects) Run(ctx context.Context, spawn func(func())) {
	d.notices.Run(ctx, spawn)
	d.roomDecisions.Run(ctx, spawn)
	d.fullNodes.Run(ctx, spawn)
}

// ShutDown ends the queues of objects that are never run.
func (d *Objects) ShutDown() {
	d.notices.Keys.ShutDown()
	d.roomDecisions.Keys.ShutDown()
	d.fullNodes.Keys.ShutDown()
}

// CachesFilled must be called once the caches have synced. Until then nothing is decided.
func (d *Objects) CachesFilled() {
	d.room.start()
	d.filled.Store(true)
}

// Filled reports whether the caches have synced.
func (d *Objects) Filled() bool { return d.filled.Load() }

// Connected begins a session of a node; capable is set for our edgecores.
func (d *Objects) Connected(node string, capable bool) {
	d.podLists.connected(node)
	if capable && d.filled.Load() {
		for _, s := range d.services.servicesFor(d.caches.PodsOf(node)) {
			d.hub.Changed(node, caches.ServiceKey(s))
		}
	}
	d.roomChanged(d.room.connected(node))
	d.notices.add(d.room.withheldOn(node))
	d.fullNodes.Keys.Add(node)
}

// Disconnected ends a session of a node. It must be called before the caches know that the node has left: they may then
// lack pods that the list of the node's pods has.
func (d *Objects) Disconnected(node string) { d.podLists.disconnected(node) }

// Inventoried records which pods a node has, by their UIDs and as the node reports them. Of those whose changes are
// withheld it finds out which ones the node has in the current version.
func (d *Objects) Inventoried(node string, pods []wire.Held, has map[types.UID]bool) {
	d.podLists.inventoried(node, has)
	change := d.room.inventoried(node, has)
	for i := range pods {
		held := &pods[i]
		pod := d.caches.Held(node, held)
		if pod == nil || caches.IsTrimmed(pod) || d.room.withheldWhy(node, pod.UID) != withheldChange {
			continue
		}
		if o, err := caches.ToSend(caches.PodKey(pod), pod); err == nil && o.Version == held.Version {
			d.room.setDelivered(node, pod.UID, caches.SizeOf(pod))
		}
	}
	d.roomChanged(change)
}

// Desired implements cloudhub.Downstream.
func (d *Objects) Desired(node string) []cloudhub.Ref {
	if !d.filled.Load() {
		return nil
	}
	var out []cloudhub.Ref
	// Our edgecore creates its Node itself, and queries it when needed. KubeEdge's waits for it.
	if n := d.caches.Node(node); n != nil && !d.sessions.Capable(node) {
		out = append(out, caches.RefTo(caches.NodeKey(node), "Node", n))
	}
	pods := d.caches.PodsOf(node)
	seen := map[resource.Key]bool{}
	for _, pod := range pods {
		out = append(out, caches.RefTo(caches.PodKey(pod), "Pod", pod))
		for _, key := range podfacts.References(pod) {
			if seen[key] {
				continue
			}
			seen[key] = true
			if o := d.caches.Named(key); o != nil {
				out = append(out, caches.RefTo(key, kindOfNamed(key), o))
			}
		}
	}
	if d.sessions.Capable(node) {
		for _, s := range d.services.servicesFor(pods) {
			out = append(out, caches.RefTo(caches.ServiceKey(s), "Service", s))
		}
	}
	return out
}

// kindOfNamed returns the kind of a ConfigMap or Secret.
func kindOfNamed(key resource.Key) string {
	if key.Type == resource.TypeConfigMap {
		return "ConfigMap"
	}
	return "Secret"
}

// Object implements cloudhub.Downstream.
func (d *Objects) Object(node string, key resource.Key) (*cloudhub.Object, error) {
	if !d.filled.Load() {
		return nil, fmt.Errorf("%s for node %s: %w", key, node, errNotFilled)
	}
	switch key.Type {
	case resource.TypePod:
		return d.podFor(node, key)
	case resource.TypeConfigMap, resource.TypeSecret:
		return d.namedFor(node, key)
	case resource.TypeNode:
		return d.nodeFor(node, key)
	case resource.TypeService:
		return d.services.serviceFor(node, key)
	}
	return nil, nil
}

func (d *Objects) podFor(node string, key resource.Key) (*cloudhub.Object, error) {
	pod, err := d.podLists.podOnNode(node, key)
	if err == nil && pod != nil {
		err = d.countPod(node, pod)
	}
	if pod == nil || err != nil {
		return nil, err
	}
	var object *cloudhub.Object
	why := d.room.withheldWhy(node, pod.UID)
	switch {
	case why != withheldNot && pod.DeletionTimestamp != nil:
		return d.sendEnding(node, key, pod)
	case why == withheldNot && caches.IsTrimmed(pod):
		object, err = d.sendLarge(node, key, pod)
	case why == withheldNot:
		object, err = caches.ToSend(key, pod)
	}
	if err != nil {
		return nil, err
	}
	if why == withheldNot { // another pod may have taken the room meanwhile
		var change roomChange
		why, change = d.room.send(node, pod.UID, caches.SizeOf(pod))
		d.roomChanged(change)
	}
	if why != withheldNot {
		if object != nil && object.Done != nil {
			object.Done()
		}
		return nil, fmt.Errorf("%s for node %s: %w", key, node,
			&cloudhub.WithheldError{UID: pod.UID, Why: why.String()})
	}
	return object, nil
}

// countPod makes sure that a pod counts before it is sent: its event may still be on its way.
func (d *Objects) countPod(node string, pod *v1.Pod) error {
	cached := func() bool {
		now := d.caches.Pod(pod.Namespace, pod.Name)
		return now != nil && now.UID == pod.UID
	}
	early := !cached() // podOnNode has just got it from the API server, or it has just been deleted
	d.roomChanged(d.room.count(node, pod, early))
	if !early && !cached() { // its last event may have come before it was counted
		d.roomChanged(d.room.drop(node, pod.UID))
		return fmt.Errorf("%s for node %s: %w", caches.PodKey(pod), node, lookups.ErrPodsMissing)
	}
	return nil
}

func (d *Objects) namedFor(node string, key resource.Key) (*cloudhub.Object, error) {
	named, withheld := d.namedOn(node, key)
	if !named && withheld {
		return nil, fmt.Errorf("%s for node %s, as the pod that names it: %w", key, node, cloudhub.ErrWithheld)
	}
	needed := func() bool { return d.caches.Names(node, key) }
	none, claims, err := d.podLists.unneeded(node, key, needed, func(m missingPod) bool {
		return slices.Contains(m.references, key) || m.unknown && m.key.Namespace == key.Namespace
	})
	switch {
	case err != nil:
		return nil, err
	case none && key.Type == resource.TypeSecret && (claims || podfacts.HasClaims(d.caches.PodsOf(node))):
		return d.volumeSecret(node, key)
	case none:
		return nil, nil
	}
	return d.contents.Object(key)
}

// namedOn reports whether a pod on a node names a ConfigMap or Secret, and whether one does, or may, that is withheld.
func (d *Objects) namedOn(node string, key resource.Key) (named, withheld bool) {
	for _, pod := range d.caches.PodsOf(node) {
		switch {
		case pod.Namespace != key.Namespace:
		case caches.LacksReferences(pod):
			withheld = true
		case !slices.Contains(podfacts.References(pod), key):
		case d.room.withheldWhy(node, pod.UID) == withheldWaiting:
			withheld = true
		default:
			return true, withheld
		}
	}
	return false, withheld
}

// volumeSecret returns a Secret that no pod names, but perhaps a persistent volume of a pod. The node may have asked
// for it, and keeps it as long as the API server would still give it.
func (d *Objects) volumeSecret(node string, key resource.Key) (*cloudhub.Object, error) {
	ctx, cancel := context.WithTimeout(impersonate.WithNode(d.ctx, node), lookups.Timeout)
	defer cancel()
	secret, err := d.asNode.CoreV1().Secrets(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("ask the API server whether node %s may have %s: %w", node, key, err)
	}
	return caches.ToSend(key, secret)
}

func (d *Objects) nodeFor(node string, key resource.Key) (*cloudhub.Object, error) {
	if key.Name != node || key.Namespace != resource.NullNamespace {
		return nil, nil
	}
	n := d.caches.Node(node)
	if n == nil {
		var err error
		if n, err = lookups.Confirmed(d.lookups, key, d.lookups.Own.CoreV1().Nodes().Get); n == nil || err != nil {
			return nil, err
		}
	}
	return caches.ToSend(key, n)
}
