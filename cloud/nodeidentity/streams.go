package nodeidentity

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// Upstream returns an Upstream that does nothing in the name of a Node that is not a device's.
func (g *Guard) Upstream(next cloudhub.Upstream) cloudhub.Upstream { return &upstream{next, g} }

type upstream struct {
	cloudhub.Upstream
	guard *Guard
}

// Handle asks the API server first for as long as the node's Node is not known as a device's: while it registers, or when a
// Node of another kind took the name. That one's session ends. A request that cannot be decided on is not answered: KubeEdge's
// edges would take an error for their Node.
func (u *upstream) Handle(ctx context.Context, node string, m *model.Message) *model.Message {
	if u.guard.opts.Edge(node) == nil {
		_, err := u.guard.lookUp(ctx, u.guard.registrars, node)
		switch {
		case err == nil:
		case errors.Is(err, cloudhub.ErrTryLater):
			klog.V(1).InfoS("Request dropped", "node", node, "resource", m.Route.Resource, "err", err)
			return nil
		default:
			klog.InfoS("Connection ended", "node", node, "why", err)
			u.guard.hub.Disconnect(node, err.Error())
			return nil
		}
	}
	return u.Upstream.Handle(ctx, node, m)
}

// Heartbeat renews no lease but that of a device's Node. Before it is registered there is none.
func (u *upstream) Heartbeat(ctx context.Context, node string) error {
	if u.guard.opts.Edge(node) == nil {
		return nil
	}
	return u.Upstream.Heartbeat(ctx, node)
}

// Downstream returns a Downstream that gives out nothing that is for a Node that is not a device's. What such a node is not
// to have is still told: nothing can be learned from it.
func (g *Guard) Downstream(next cloudhub.Downstream) cloudhub.Downstream { return &downstream{next, g} }

type downstream struct {
	cloudhub.Downstream
	guard *Guard
}

func (d *downstream) Object(node string, key resource.Key) (*cloudhub.Object, error) {
	object, err := d.Downstream.Object(node, key)
	if object != nil && key.Type != resource.TypeNode && d.guard.opts.Edge(node) == nil {
		return nil, fmt.Errorf("%s is for node %s, which is not registered as a device's", key, node)
	}
	return object, err
}
