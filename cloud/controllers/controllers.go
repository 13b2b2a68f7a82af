// Package controllers joins cloudcore's controllers into the one Downstream and the one Upstream that cloudhub calls.
//
// It owns the decision which controller is responsible for an object or a request: devices and their models, and what
// the source "twin" sends, belong to devicecontroller; everything else belongs to edgecontroller.
package controllers

import (
	"context"
	"fmt"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/pkg/devicemsg"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Controller is a controller of cloudcore.
type Controller interface {
	cloudhub.Downstream
	cloudhub.Upstream
}

// Join returns the controllers as one. devices may be nil: then devices stay on the nodes as they are, and what nodes
// report about them gets no answer.
func Join(edge, devices Controller) Controller { return &joined{edge: edge, devices: devices} }

type joined struct{ edge, devices Controller }

// isDevice reports whether devicecontroller is responsible for objects of a type.
func isDevice(typ string) bool { return typ == resource.TypeDevice || typ == resource.TypeDeviceModel }

// Desired implements cloudhub.Downstream.
func (j *joined) Desired(node string) []cloudhub.Ref {
	refs := j.edge.Desired(node)
	if j.devices != nil {
		refs = append(refs, j.devices.Desired(node)...)
	}
	return refs
}

// Object implements cloudhub.Downstream.
func (j *joined) Object(node string, key resource.Key) (*cloudhub.Object, error) {
	switch {
	case !isDevice(key.Type):
		return j.edge.Object(node, key)
	case j.devices == nil:
		return nil, fmt.Errorf("%s: modules.deviceController is switched off: %w", key, cloudhub.ErrNotServed)
	}
	return j.devices.Object(node, key)
}

// Connected implements cloudhub.Upstream.
func (j *joined) Connected(ctx context.Context, node, protocol string) {
	j.edge.Connected(ctx, node, protocol)
	if j.devices != nil {
		j.devices.Connected(ctx, node, protocol)
	}
}

// Disconnected implements cloudhub.Upstream.
func (j *joined) Disconnected(node, reason string) {
	j.edge.Disconnected(node, reason)
	if j.devices != nil {
		j.devices.Disconnected(node, reason)
	}
}

// Inventoried implements cloudhub.Upstream.
func (j *joined) Inventoried(ctx context.Context, node string, pods []wire.Held) (report []string) {
	return j.edge.Inventoried(ctx, node, pods)
}

// Heartbeat implements cloudhub.Upstream.
func (j *joined) Heartbeat(ctx context.Context, node string) error {
	return j.edge.Heartbeat(ctx, node)
}

// Handle implements cloudhub.Upstream.
func (j *joined) Handle(ctx context.Context, node string, m *model.Message) *model.Message {
	switch {
	case m.Route.Source != devicemsg.Source:
		return j.edge.Handle(ctx, node, m)
	case j.devices == nil:
		return nil
	}
	return j.devices.Handle(ctx, node, m)
}
