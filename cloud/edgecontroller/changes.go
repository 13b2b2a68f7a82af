package edgecontroller

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// Hub is what the controller needs from the hub.
type Hub interface {
	// Changed marks an object of a node as new, changed or deleted. It never blocks.
	Changed(node string, key resource.Key)
	// StatusChanged reports that nothing but the status of a node's pod changed. It never blocks.
	StatusChanged(node string, key resource.Key)
	// Holds reports that a node has an object that the hub may not know of.
	Holds(node string, key resource.Key, uid types.UID)
	// RequestStatus asks a node to report a pod's status again. It returns false if the node is not connected, or
	// cannot be asked. It never blocks.
	RequestStatus(node string, key resource.Key, uid types.UID) bool
	// Disconnect ends a node's session.
	Disconnect(node, reason string)
	// Recorded passes on a Node's InstanceAnnotation. It never blocks.
	Recorded(node string, r cloudhub.Record)
	// ToRecord returns what a Node's annotation must become, and how long to wait before asking again; ok is false if
	// there is nothing to write. It never blocks.
	ToRecord(node string, have cloudhub.Record) (next cloudhub.Record, wait time.Duration, ok bool)
}

// change holds the arguments of one call of Hub.Changed.
type change struct {
	node string
	key  resource.Key
}

// podChanges returns the changes for nodes in a pod's event; old is nil for a new pod, now for a deleted one. Objects
// that a pod refers to come before it, so that the node has them when it starts the pod. A change of the status alone
// counts only if it is in conditions that readiness gates name and that the node does not set itself.
func podChanges(old, now *v1.Pod) []change {
	var out []change
	tell := func(pod *v1.Pod, keys ...resource.Key) {
		if pod.Spec.NodeName == "" {
			return
		}
		for _, k := range keys {
			out = append(out, change{pod.Spec.NodeName, k})
		}
	}
	switch {
	case old == nil && now == nil:
	case old == nil:
		tell(now, references(now)...)
		tell(now, podKey(now))
	case now == nil:
		tell(old, podKey(old))
		tell(old, references(old)...)
	case old.Spec.NodeName != now.Spec.NodeName || old.UID != now.UID:
		// A new pod of the same name: the two events in between were missed.
		out = append(podChanges(old, nil), podChanges(nil, now)...)
	case samePod(old, now):
	default:
		before, after := references(old), references(now)
		for _, k := range after {
			if !slices.Contains(before, k) {
				tell(now, k)
			}
		}
		tell(now, podKey(now))
		for _, k := range before {
			if !slices.Contains(after, k) {
				tell(now, k)
			}
		}
	}
	return out
}

func samePod(a, b *v1.Pod) bool {
	return sameMeta(&a.ObjectMeta, &b.ObjectMeta) && equality.Semantic.DeepEqual(&a.Spec, &b.Spec) && sameGates(a, b)
}

// sameGates reports whether the conditions of the readiness gates are unchanged.
func sameGates(a, b *v1.Pod) bool {
	stand := func(pod *v1.Pod, kind v1.PodConditionType) v1.ConditionStatus {
		if i := slices.IndexFunc(pod.Status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == kind
		}); i >= 0 {
			return pod.Status.Conditions[i].Status
		}
		return ""
	}
	return !slices.ContainsFunc(b.Spec.ReadinessGates, func(g v1.PodReadinessGate) bool {
		return stand(a, g.ConditionType) != stand(b, g.ConditionType)
	})
}

// sameNode ignores the status, which comes from the edge.
func sameNode(a, b *v1.Node) bool {
	return sameMeta(&a.ObjectMeta, &b.ObjectMeta) && equality.Semantic.DeepEqual(&a.Spec, &b.Spec)
}

// sameMeta ignores fields that change with every write.
func sameMeta(a, b *metav1.ObjectMeta) bool {
	x, y := *a, *b
	for _, m := range []*metav1.ObjectMeta{&x, &y} {
		m.ResourceVersion, m.Generation, m.ManagedFields = "", 0, nil
	}
	return equality.Semantic.DeepEqual(&x, &y)
}

// watch turns the informers' events into calls of the hub.
func (c *Controller) watch() error {
	handlers := map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		c.caches.nodes:      handler(c.nodeEvent),
		c.caches.configMaps: handler(c.namedEvent(resource.TypeConfigMap)),
		c.caches.secrets:    handler(c.namedEvent(resource.TypeSecret)),
		c.caches.services:   handler(c.serviceEvent),
	}
	c.caches.pods.changed, c.caches.pods.fetch = c.podEvent, c.podFetches.queue.Add
	for informer, h := range handlers {
		if _, err := informer.AddEventHandler(h); err != nil {
			return err
		}
	}
	return nil
}

// handler calls f with the object before and after; nil means none.
func handler[T any](f func(old, now *T)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if now, ok := obj.(*T); ok {
				f(nil, now)
			}
		},
		UpdateFunc: func(before, obj any) {
			old, was := before.(*T)
			now, is := obj.(*T)
			if was && is {
				f(old, now)
			}
		},
		DeleteFunc: func(obj any) {
			if missed, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = missed.Obj
			}
			if old, ok := obj.(*T); ok {
				f(old, nil)
			}
		},
	}
}

func (c *Controller) podEvent(old, now *v1.Pod) {
	c.podLists.changed(old, now)
	c.recent.changed(now)
	changes := podChanges(old, now)
	sameContent := old != nil && now != nil && len(changes) == 0
	change := c.room.changed(old, now, sameContent) // before the hub asks for them
	for _, ch := range changes {
		c.hub.Changed(ch.node, ch.key)
	}
	c.roomChanged(change)
	if len(changes) == 0 && old != nil && now != nil && old.ResourceVersion != now.ResourceVersion &&
		now.Spec.NodeName != "" {
		c.hub.StatusChanged(now.Spec.NodeName, podKey(now))
	}
	if now != nil {
		c.tolerations.podChanged(now)
		c.readiness.podChanged(now)
		c.statusRequests.podChanged(now)
	}
	if old != nil && (now == nil || now.UID != old.UID) {
		c.statuses.forget(old.Spec.NodeName, old.UID)
	}
	if len(changes) == 0 {
		return
	}
	for _, pod := range []*v1.Pod{old, now} {
		if pod != nil && (old == nil || now == nil || old.UID != now.UID) {
			c.servicesChanged(pod)
		}
	}
}

// decided decides about the room of a node's pods.
func (c *Controller) decided(node string) {
	change := c.room.decide(node)
	c.roomChanged(change)
	if len(change.withheld) > 0 {
		c.fullNodes.queue.Add(node)
	}
}

// roomChanged marks pods that are not withheld any more, and before each the objects that it refers to. Pods that are
// withheld now get an event. Those that are ending are marked too: of these their nodes may have more than they are to.
// Decisions that are due are queued.
func (c *Controller) roomChanged(change roomChange) {
	for node, after := range change.due {
		c.decideRoom(node, after)
	}
	for _, p := range change.released {
		pod := c.caches.pod(p.key.Namespace, p.key.Name)
		if pod == nil || pod.UID != p.uid {
			continue
		}
		for _, key := range references(pod) {
			c.hub.Changed(pod.Spec.NodeName, key)
		}
		c.hub.Changed(pod.Spec.NodeName, p.key)
	}
	for _, p := range change.withheld {
		if pod := c.caches.pod(p.key.Namespace, p.key.Name); p.ending() && pod != nil && pod.UID == p.uid {
			c.hub.Changed(pod.Spec.NodeName, p.key)
		}
	}
	c.notices.add(change.withheld)
}

// servicesChanged marks the services that come or go with a pod.
func (c *Controller) servicesChanged(pod *v1.Pod) {
	if c.sessions.capable(pod.Spec.NodeName) {
		for _, s := range c.servicesFor([]*v1.Pod{pod}) {
			c.hub.Changed(pod.Spec.NodeName, serviceKey(s))
		}
	}
}

func (c *Controller) nodeEvent(old, now *v1.Node) {
	c.endpointChanged(old, now)
	if old == nil || now == nil {
		c.caches.pods.nodeChanged(firstNonNil(now, old).Name)
	}
	switch {
	case now == nil:
		c.hub.Disconnect(old.Name, "the node was deleted, or no longer has the label "+EdgeLabel)
		c.duplicates.forget(old.Name)
		return
	case old != nil && old.UID != now.UID:
		c.hub.Disconnect(old.Name, "the node was deleted and registered again")
	}
	c.instances.nodeChanged(old, now)
	c.duplicates.nodeChanged(old, now)
	if old == nil || !nodeIsReady(old) {
		c.readiness.nodeChanged(now)
	}
	if old == nil || keepsEvictions(old.Annotations) != keepsEvictions(now.Annotations) ||
		reachable(old) && !reachable(now) {
		c.tolerations.nodeChanged(now.Name)
	}
	if old != nil && sameNode(old, now) {
		return
	}
	if !c.sessions.capable(now.Name) {
		c.hub.Changed(now.Name, nodeObjectKey(now.Name))
	}
}

// namedEvent returns the handler of ConfigMaps or Secrets. A new version may have the same content: the hub compares it
// with what each node has.
func (c *Controller) namedEvent(kind string) func(old, now *metav1.PartialObjectMetadata) {
	return func(old, now *metav1.PartialObjectMetadata) {
		known := firstNonNil(now, old)
		key := resource.Key{Namespace: known.Namespace, Type: kind, Name: known.Name}
		if now == nil {
			c.contents.forget(key)
		} else {
			c.contents.expire(key, now.ResourceVersion)
		}
		if old != nil && now != nil && old.UID == now.UID && old.ResourceVersion == now.ResourceVersion {
			return
		}
		c.namedChanged(kind, known)
	}
}

func firstNonNil[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}

// namedChanged marks a ConfigMap or Secret on the nodes whose pods name it.
func (c *Controller) namedChanged(kind string, obj metav1.Object) {
	key := resource.Key{Namespace: obj.GetNamespace(), Type: kind, Name: obj.GetName()}
	told := map[string]bool{}
	for _, pod := range c.caches.podsNaming(key) {
		if node := pod.Spec.NodeName; !told[node] {
			told[node] = true
			c.hub.Changed(node, key)
		}
	}
}

func (c *Controller) serviceEvent(old, now *v1.Service) {
	if old != nil && now != nil && sameService(old, now) {
		return
	}
	key := serviceKey(firstNonNil(old, now))
	if isAPIService(key) { // pods of all namespaces have it
		for _, node := range c.sessions.capableNodes() {
			if serves(key, c.caches.podsOf(node)) {
				c.hub.Changed(node, key)
			}
		}
		return
	}
	for _, node := range c.caches.nodesServed(key.Namespace) {
		if c.sessions.capable(node) {
			c.hub.Changed(node, key)
		}
	}
}
