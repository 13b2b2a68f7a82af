package edgecontroller

import (
	"maps"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/cloud/informers"
)

// EdgeNode returns a Node with EdgeLabel from the cache, or nil. The caller must not modify it.
func (c *Controller) EdgeNode(name string) *v1.Node { return c.caches.Node(name) }

// OnEdgeNode calls f for each Node of a device that is new or whose labels changed. Call it before Start; f must not
// block.
func (c *Controller) OnEdgeNode(f func(*v1.Node)) error {
	_, err := c.caches.Nodes.AddEventHandler(informers.Handler(func(old, now *v1.Node) {
		if now != nil && (old == nil || old.UID != now.UID || !maps.Equal(old.Labels, now.Labels)) {
			f(now)
		}
	}))
	return err
}
