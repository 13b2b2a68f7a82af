package intake

import (
	"context"
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/edged/podstate/metaclient"
	"github.com/edgecore-io/edgecore/edged/storage/volume"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// Receive takes what metamanager forwards, in order, until ctx ends.
func (in *Intake) Receive(ctx context.Context) error {
	for {
		m, err := in.opts.Bus.Receive(ctx, model.ModuleEdged)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		in.handle(m)
	}
}

// handle acts on one message. By the time it comes, its content is in the store: a message that makes no sense is
// logged and changes nothing.
func (in *Intake) handle(m *model.Message) {
	key, err := resource.Parse(m.Route.Resource)
	if err != nil {
		klog.ErrorS(err, "Message dropped", "resource", m.Route.Resource, "source", m.Route.Source)
		return
	}
	switch key.Type {
	case resource.TypePod:
		in.handlePod(m)
	case resource.TypeConfigMap:
		in.objectChanged(volume.KindConfigMap, key.Namespace, key.Name)
	case resource.TypeSecret:
		in.objectChanged(volume.KindSecret, key.Namespace, key.Name)
	case resource.TypeLink:
		in.linkChanged(m)
	default:
		klog.V(4).InfoS("Message ignored", "resource", m.Route.Resource, "operation", m.Route.Operation)
	}
}

func (in *Intake) handlePod(m *model.Message) {
	switch m.Route.Operation {
	case model.OpInsert, model.OpUpdate:
		pod, err := metaclient.DecodePod(m.ContentData())
		if err != nil {
			klog.ErrorS(err, "Pod message dropped", "resource", m.Route.Resource)
			return
		}
		in.Put(pod)
	case model.OpDelete:
		// The content may be no more than the names and the UID.
		var obj metav1.PartialObjectMetadata
		if err := json.Unmarshal(m.ContentData(), &obj); err != nil || obj.UID == "" {
			klog.ErrorS(err, "Pod delete message without a UID dropped", "resource", m.Route.Resource)
			return
		}
		in.Remove(types.UID(obj.UID))
	}
}

// linkChanged acts on a change of the link: what failed without it is tried again. Pods do not depend on it.
func (in *Intake) linkChanged(m *model.Message) {
	connected, synced := metaclient.LinkNews(m)
	if !synced {
		in.opts.Mirrors.Link(connected)
	}
	if !connected {
		return
	}
	if synced { // which comes after the news of the link itself
		in.opts.Synced()
		in.opts.Ready.StoreRepaired()
		if in.opts.Ready.Started() {
			in.removeOrphans()
			in.opts.Garbage.Changed() // only now may leftovers be known to belong to no pod
		}
		return
	}
	in.opts.Linked()
	in.opts.Workers.EnqueueAll()
}
