package edgecontroller

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

// desired knows what each node should have.
type desired struct {
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

	// Set by start.
	ctx context.Context
	hub desiredHub
	// filled is set once the caches have synced.
	filled atomic.Bool
}

// desiredHub is what desired needs from the hub; see Hub.
type desiredHub interface {
	Changed(node string, key resource.Key)
	StatusChanged(node string, key resource.Key)
}

func newDesired(
	clients impersonate.Clients, caches *caches.Caches, sessions *sessions.Sessions, lookups *lookups.Lookups,
	contents *lookups.Contents, room *podRoom,
) *desired {
	d := &desired{
		caches:    caches,
		sessions:  sessions,
		lookups:   lookups,
		contents:  contents,
		asNode:    clients.AsNode,
		podLists:  newPodLists(caches, lookups),
		room:      room,
		notices:   newPodNotices(clients.Own, caches, sessions, room),
		wholeSent: shares.NewBudget[string](wholeBytes, wholeNodeBytes),
	}
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

// start sets the hub. It must return before the caches are filled.
func (d *desired) start(ctx context.Context, hub desiredHub) {
	d.ctx, d.hub, d.services.hub = ctx, hub, hub
}

// run works until the context ends.
func (d *desired) run(ctx context.Context, spawn func(func())) {
	d.notices.Run(ctx, spawn)
	d.roomDecisions.Run(ctx, spawn)
	d.fullNodes.Run(ctx, spawn)
}

// cachesFilled must be called once the caches have synced. Until then nothing is decided.
func (d *desired) cachesFilled() {
	d.room.start()
	d.filled.Store(true)
}

// Filled reports whether the caches have synced.
func (d *desired) Filled() bool { return d.filled.Load() }

// connected begins a session of a node; capable is set for our edgecores.
func (d *desired) connected(node string, capable bool) {
	if capable && d.filled.Load() {
		for _, s := range d.services.servicesFor(d.caches.PodsOf(node)) {
			d.hub.Changed(node, caches.ServiceKey(s))
		}
	}
	d.roomChanged(d.room.connected(node))
	d.notices.add(d.room.withheldOn(node))
	d.fullNodes.Keys.Add(node)
}

// inventoried records which pods a node has, by their UIDs and as the node reports them. Of those whose changes are
// withheld it finds out which ones the node has in the current version.
func (d *desired) inventoried(node string, pods []wire.Held, has map[types.UID]bool) {
	d.podLists.inventoried(node, has)
	change := d.room.inventoried(node, has)
	for i := range pods {
		held := &pods[i]
		pod := d.caches.Held(node, held)
		if pod == nil || caches.IsTrimmed(pod) || d.room.of(node, pod.UID) != withheldChange {
			continue
		}
		if o, err := caches.ToSend(caches.PodKey(pod), pod); err == nil && o.Version == held.Version {
			d.room.has(node, pod.UID, caches.SizeOf(pod))
		}
	}
	d.roomChanged(change)
}

// Desired implements cloudhub.Downstream.
func (d *desired) Desired(node string) []cloudhub.Ref {
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
func (d *desired) Object(node string, key resource.Key) (*cloudhub.Object, error) {
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

func (d *desired) podFor(node string, key resource.Key) (*cloudhub.Object, error) {
	pod, err := d.podLists.podOnNode(node, key)
	if err == nil && pod != nil {
		err = d.countPod(node, pod)
	}
	if pod == nil || err != nil {
		return nil, err
	}
	var object *cloudhub.Object
	why := d.room.of(node, pod.UID)
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
func (d *desired) countPod(node string, pod *v1.Pod) error {
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

func (d *desired) namedFor(node string, key resource.Key) (*cloudhub.Object, error) {
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
func (d *desired) namedOn(node string, key resource.Key) (named, withheld bool) {
	for _, pod := range d.caches.PodsOf(node) {
		switch {
		case pod.Namespace != key.Namespace:
		case caches.LacksReferences(pod):
			withheld = true
		case !slices.Contains(podfacts.References(pod), key):
		case d.room.of(node, pod.UID) == withheldWaiting:
			withheld = true
		default:
			return true, withheld
		}
	}
	return false, withheld
}

// volumeSecret returns a Secret that no pod names, but perhaps a persistent volume of a pod. The node may have asked
// for it, and keeps it as long as the API server would still give it.
func (d *desired) volumeSecret(node string, key resource.Key) (*cloudhub.Object, error) {
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

func (d *desired) nodeFor(node string, key resource.Key) (*cloudhub.Object, error) {
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
