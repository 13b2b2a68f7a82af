package nodeidentity

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// Upstream wraps an Upstream so that nothing is done in the name of a Node that is not a device's.
func (g *Guard) Upstream(next cloudhub.Upstream) cloudhub.Upstream { return &upstream{next, g} }

type upstream struct {
	cloudhub.Upstream
	guard *Guard
}

// Connected labels the Node with its device if that was not possible before.
func (u *upstream) Connected(ctx context.Context, node, protocol string) {
	u.Upstream.Connected(ctx, node, protocol)
	if n := u.guard.opts.Edge(node); n != nil {
		u.guard.NodeChanged(n)
	}
}

// Handle carries out what Permit allows. A request that cannot be decided gets no answer: KubeEdge's edgecores would
// take an error for their Node.
func (u *upstream) Handle(ctx context.Context, node string, m *model.Message) *model.Message {
	asked := time.Now()
	if err := u.guard.Permit(ctx, node); err != nil {
		klog.V(1).InfoS("Request dropped", "node", node, "resource", m.Route.Resource, "err", err)
		return nil
	}
	return u.Upstream.Handle(withPermit(ctx, asked), node, m)
}

type permitKey struct{}

// withPermit returns the context of a request that Permit allowed when it was called at a time.
func withPermit(ctx context.Context, at time.Time) context.Context {
	return context.WithValue(ctx, permitKey{}, at)
}

// permitted reports whether the request of ctx was permitted so recently that the permission lasts.
func permitted(ctx context.Context, now time.Time) bool {
	at, ok := ctx.Value(permitKey{}).(time.Time)
	return ok && now.Sub(at) < permitFor
}

// Heartbeat renews only leases of devices' Nodes. An unregistered node has none.
func (u *upstream) Heartbeat(ctx context.Context, node string) error {
	if u.guard.opts.Edge(node) == nil {
		return nil
	}
	return u.Upstream.Heartbeat(ctx, node)
}

// Downstream wraps a Downstream so that it sends nothing for a Node that is not a device's. Deletions are still sent:
// they reveal nothing.
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
