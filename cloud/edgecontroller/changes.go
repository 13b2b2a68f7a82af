package edgecontroller

import (
	"cmp"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/cache"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/cloud/informers"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// watch turns the informers' events into calls of the hub.
func (c *Controller) watch() error {
	handlers := map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		c.caches.Nodes:      informers.Handler(c.nodeEvent),
		c.caches.ConfigMaps: informers.Handler(c.desired.NamedEvent(resource.TypeConfigMap)),
		c.caches.Secrets:    informers.Handler(c.desired.NamedEvent(resource.TypeSecret)),
		c.caches.Services:   informers.Handler(c.desired.ServiceEvent),
	}
	c.caches.Pods.Changed, c.caches.Pods.Fetch = c.podEvent, c.podFetches.Keys.Add
	for informer, h := range handlers {
		if _, err := informer.AddEventHandler(h); err != nil {
			return err
		}
	}
	return nil
}

// podEvent takes a change of a pod; old is nil for a new one, now for a deleted one.
func (c *Controller) podEvent(old, now *v1.Pod) {
	c.requests.PodChanged(now)
	c.desired.PodChanged(old, now)
	if now != nil {
		c.nodes.PodChanged(now)
		c.statusRequests.PodChanged(now)
	}
	if old != nil && (now == nil || now.UID != old.UID) {
		c.statuses.Forget(old.Spec.NodeName, old.UID)
	}
}

// nodeEvent takes a change of a Node; old is nil for a new one, now for a deleted one.
func (c *Controller) nodeEvent(old, now *v1.Node) {
	if old == nil || now == nil {
		c.caches.Pods.NodeChanged(cmp.Or(now, old).Name)
	}
	c.nodes.NodeChanged(old, now)
	switch {
	case now == nil, old != nil && sameNode(old, now):
	case !c.sessions.Capable(now.Name):
		c.hub.Changed(now.Name, caches.NodeKey(now.Name))
	}
}

// sameNode ignores the status, which comes from the edge.
func sameNode(a, b *v1.Node) bool {
	return caches.SameMeta(&a.ObjectMeta, &b.ObjectMeta) && equality.Semantic.DeepEqual(&a.Spec, &b.Spec)
}
