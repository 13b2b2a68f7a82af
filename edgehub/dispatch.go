package edgehub

import (
	"context"
	"errors"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive"
	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/devicemsg"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/tunnel"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// destination is where a message from the cloud goes.
type destination struct {
	// answer: to its waiter.
	answer bool
	// module gets other messages.
	module string
	// problem says why it is dropped.
	problem string
}

// Groups and modules of KubeEdge's protocol (docs/wire.md, Dispatch) besides those of package model.
const (
	groupFunc        = "func"
	groupUser        = "user"
	groupTaskManager = "taskmanager"

	moduleEventBus   = "eventbus"
	moduleServiceBus = "servicebus"

	sourceRouterEventBus   = "router_eventbus"
	sourceRouterServiceBus = "router_servicebus"
)

// destinationOf decides by group (docs/wire.md, Dispatch). It rejects messages over the link that only modules of this
// device may send.
func destinationOf(m *model.Message) destination {
	switch m.Route.Operation {
	case wire.OpConnect, "unhold-upgrade":
		return destination{problem: "the operation is only for messages within a device"}
	case "config", "ping", "pong", wire.OpBatch:
		return destination{problem: "the operation is only for the connection itself"}
	}
	switch m.Route.Group {
	case model.GroupResource, groupFunc:
		switch {
		case m.IsResponse():
			return destination{answer: true}
		case m.Route.Source == model.ModuleEdged:
			return destination{problem: "the source is a module of the device"}
		}
		return destination{module: model.ModuleMetaManager}
	case devicemsg.Group:
		if m.IsResponse() {
			return destination{answer: true}
		}
		return destination{module: devicemsg.Group}
	case groupTaskManager:
		return destination{module: groupTaskManager}
	case groupUser:
		switch {
		case m.IsResponse():
			return destination{answer: true}
		case m.Route.Source == sourceRouterEventBus:
			return destination{module: moduleEventBus}
		case m.Route.Source == sourceRouterServiceBus:
			return destination{module: moduleServiceBus}
		}
	}
	return destination{problem: "no module receives its group"}
}

// unawaitedAnswer makes a message for metamanager of an answer whose request has ended: the link was lost in between,
// or the answer comes twice. Metamanager acknowledges it, and stores it if it is a newer version of an object that it
// has. KubeEdge's cloud sends such answers until they are acknowledged, and nothing else meanwhile (docs/wire.md,
// Acknowledgements). It returns nil for answers that only their request could use.
func unawaitedAnswer(m *model.Message) *model.Message {
	key, err := resource.Parse(m.Route.Resource)
	if err != nil || m.Route.Operation != model.OpResponse || m.Route.Group != model.GroupResource ||
		m.Header.ResourceVersion == "" || key.Name == "" {
		return nil
	}
	switch key.Type {
	case resource.TypeConfigMap, resource.TypeSecret, resource.TypePersistentVolume, resource.TypePersistentVolumeClaim,
		resource.TypeVolumeAttachment:
	default:
		return nil
	}
	alone := *m
	alone.Header.ParentID = ""
	return &alone
}

// dispatch passes a message from the cloud to its destination. A full inbox blocks the link for as long as the bus
// waits; a message that it does not take then is not acknowledged, and the cloud sends it again.
func (m *Module) dispatch(ctx context.Context, msg *model.Message) {
	if msg.Route.Group == tunnel.Group && msg.Route.Operation == tunnel.Operation && m.tunnels != nil {
		m.openTunnel(msg)
		return
	}
	d := destinationOf(msg)
	var err error
	switch {
	case d.problem != "":
		err = errors.New(d.problem)
	case d.answer:
		err = m.bus.SendResp(ctx, msg)
		if news := unawaitedAnswer(msg); errors.Is(err, beehive.ErrNoWaiter) && news != nil {
			err = m.bus.Send(ctx, model.ModuleMetaManager, news)
		}
	default:
		err = m.bus.Send(ctx, d.module, msg)
	}
	switch {
	case err == nil || ctx.Err() != nil:
	case errors.Is(err, beehive.ErrFull):
		klog.ErrorS(err, "Message from the cloud failed", "resource", msg.Route.Resource,
			"operation", msg.Route.Operation)
	default:
		klog.V(2).InfoS("Message from the cloud dropped", "resource", msg.Route.Resource,
			"operation", msg.Route.Operation,
			"group", msg.Route.Group, "source", msg.Route.Source, "err", err)
	}
}
