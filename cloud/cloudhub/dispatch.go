package cloudhub

import (
	"regexp"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/devicemsg"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// arrival is the kind of a message from an edge.
type arrival int

const (
	dropped   arrival = iota // no handler here
	keepalive                // a sign of life
	volume                   // the answer to a request of the CSI driver
	ack
	nack
	inventory // what the edge holds
	batched   // several requests
	kubeCA    // the question for the CA of the API
	request   // for Upstream
)

const resourceKubeCA = "k8s/ca.crt"

// maxResource is the maximum length of a resource name: a namespace, type and name of Kubernetes with room to spare.
const maxResource = 1024

var volumeResource = regexp.MustCompile(`^\w[-\w.+]*/volume/\w[-\w.+]*`)

// classify returns the kind of a message, in the order of docs/wire.md, Dispatch. For a dropped message it also returns
// why.
func classify(m *model.Message, features wire.Features) (what arrival, why string) {
	r := &m.Route
	switch {
	case r.Operation == model.OpKeepalive:
		return keepalive, ""
	case len(r.Resource) > maxResource:
		return dropped, "its resource is too long"
	case volumeResource.MatchString(r.Resource) && m.IsResponse():
		return volume, ""
	case r.Operation == model.OpResponse:
		return answered(m, ack)
	case r.Operation == model.OpError:
		return answered(m, nack)
	case r.Operation == model.OpUpload && r.Group == "user":
		return dropped, "there is no router"
	case r.Operation == "prepull" || r.Operation == "upgrade" || r.Operation == "UpdateNodeActionStatus":
		return dropped, "there is no task manager"
	case r.Resource == resourceKubeCA:
		return kubeCA, ""
	case wire.IsInventory(m):
		if !features.Inventory {
			return dropped, "an inventory was not agreed"
		}
		return inventory, ""
	case wire.IsBatch(m):
		if !features.Batch {
			return dropped, "batches were not agreed"
		}
		return batched, ""
	}
	return requested(m)
}

func answered(m *model.Message, what arrival) (arrival, string) {
	switch {
	case m.Route.Group != model.GroupResource && !answersDevice(&m.Route):
		return dropped, "it answers for a group that has no objects"
	case !m.IsResponse():
		return dropped, "it names no message that it answers"
	}
	return what, ""
}

// answersDevice reports whether a message answers one about a device or a model: KubeEdge's edgecores acknowledge these
// in the group of their device module.
func answersDevice(r *model.Route) bool {
	key, err := resource.Parse(r.Resource)
	return err == nil && r.Group == devicemsg.Group &&
		(key.Type == resource.TypeDevice || key.Type == resource.TypeDeviceModel)
}

func requested(m *model.Message) (arrival, string) {
	switch m.Route.Source {
	case "cloudhub", "cloudStream", "devicecontroller", "edgecontroller", "synccontroller":
		return dropped, "its source is a module of the cloud"
	case "metaserver":
		return dropped, "there is no dynamic controller"
	}
	if m.Header.ID == "" {
		return dropped, "it has no id"
	}
	if m.Route.Source == devicemsg.Source {
		if _, ok := devicemsg.ParseReport(m.Route.Resource); !ok && m.Route.Resource != devicemsg.ResourceDetail {
			return dropped, "its resource names no report on a device"
		}
		return request, ""
	}
	if _, err := resource.Parse(m.Route.Resource); err != nil {
		return dropped, "its resource names no object"
	}
	return request, ""
}

// executorKey returns the queue of a request. Requests that change the same object share one, which keeps their order.
// Queries change nothing and share none: many pods ask for tokens of one account.
func executorKey(m *model.Message) string {
	if m.Route.Operation == model.OpQuery {
		return m.Route.Resource + " " + m.Header.ID
	}
	return objectOf(m.Route.Resource)
}

// objectOf returns the object that a resource is about.
func objectOf(name string) string {
	if r, ok := devicemsg.ParseReport(name); ok {
		return resource.Key{Namespace: r.Namespace, Type: resource.TypeDevice, Name: r.Name}.String()
	}
	k, err := resource.Parse(name)
	if err != nil {
		return name
	}
	switch k.Type {
	case resource.TypePodPatch, resource.TypePodStatus:
		k.Type = resource.TypePod
	case resource.TypeNodePatch, resource.TypeNodeStatus:
		k.Type = resource.TypeNode
	}
	if k.Type == resource.TypeNode { // its namespace is "null" or "default", by version
		k.Namespace = resource.NullNamespace
	}
	return k.String()
}
