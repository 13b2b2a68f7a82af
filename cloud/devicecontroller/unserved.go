package devicecontroller

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
)

const (
	// unservedPeriod is how often devices are checked for a missing node or mapper, unservedAfter how old they are
	// then: a node may join, and a mapper start, after its devices are made.
	unservedPeriod = 5 * time.Minute
	unservedAfter  = 5 * time.Minute
)

// isUnserved reports whether a device should have a state by now and has none.
func isUnserved(d *devices.Device, now time.Time) bool {
	return d.Spec.NodeName != "" && now.Sub(d.CreationTimestamp.Time) >= unservedAfter &&
		(d.Status == nil || d.Status.State == "")
}

// checkUnserved records events about devices that nobody serves, until ctx ends.
func (c *Controller) checkUnserved(ctx context.Context) {
	tick := time.NewTicker(unservedPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			c.unserved(ctx)
		}
	}
}

// unserved records an event of each device that has no state: its node is missing, or its mapper.
func (c *Controller) unserved(ctx context.Context) {
	exists := map[string]bool{}
	for _, obj := range c.caches.devices.GetStore().List() {
		d, ok := obj.(*devices.Device)
		if !ok || !isUnserved(d, time.Now()) {
			continue
		}
		node := d.Spec.NodeName
		has, known := exists[node]
		if !known {
			var err error
			if has, err = c.nodeExists(ctx, node); err != nil {
				return // the API server has other trouble; the next round comes
			}
			exists[node] = has
		}
		ours, connected := c.runsEdgecore(node)
		switch {
		case !has:
			c.events.once(d, v1.EventTypeWarning, "NodeMissing", fmt.Sprintf("Node %s does not exist: join it, or "+
				"correct spec.nodeName", node))
		case connected && ours:
			c.events.once(d, v1.EventTypeWarning, "MapperMissing", fmt.Sprintf("Node %s has reported no state of this "+
				"device: check that a mapper for the protocol %q runs there (edgecore get devices)", node,
				d.Spec.Protocol.ProtocolName))
		}
	}
}

// nodeExists asks the API server for a Node.
func (c *Controller) nodeExists(ctx context.Context, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	_, err := c.events.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}
