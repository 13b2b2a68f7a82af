package cloudhub

import (
	"encoding/json"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub/queue"
	devices "github.com/edgecore-io/edgecore/pkg/apis/devices/v1beta1"
	"github.com/edgecore-io/edgecore/pkg/devicemsg"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// Sources of the cloud's messages (docs/wire.md, Operations, sources and groups).
const (
	sourceEdgeController   = "edgecontroller"
	sourceDeviceController = devicemsg.SourceCloud
	sourceCloudHub         = "cloudhub"
)

// pushMessage returns the message for an action (docs/wire.md, Pushes of the cloud). object is the state to send; for a
// delete it is the last one, and may be nil.
func pushMessage(key resource.Key, act queue.Action, object json.RawMessage, apiVersion, kind string) *model.Message {
	source := sourceEdgeController
	if key.Type == resource.TypeDevice || key.Type == resource.TypeDeviceModel {
		source = sourceDeviceController
	}
	m := model.New(source, model.GroupResource, operation(key, act.Op), key.String(), object)
	if act.Op == queue.Delete && object == nil {
		m.Content = tombstone(key, act.State.UID, apiVersion, kind)
	}
	m.Header.ID, m.Header.ResourceVersion = act.ID, act.State.ResourceVersion
	return m
}

// operation returns the word on the wire. KubeEdge always sends secrets and nodes as updates.
func operation(key resource.Key, op queue.Op) string {
	if op == queue.Insert && (key.Type == resource.TypeSecret || key.Type == resource.TypeNode) {
		op = queue.Update
	}
	return op.String()
}

// tombstone is the content of a delete: enough to find the object by its UID.
func tombstone(key resource.Key, uid types.UID, apiVersion, kind string) json.RawMessage {
	type metadata struct {
		Name      string    `json:"name"`
		Namespace string    `json:"namespace,omitempty"`
		UID       types.UID `json:"uid"`
	}
	object := struct {
		APIVersion string   `json:"apiVersion,omitempty"`
		Kind       string   `json:"kind,omitempty"`
		Metadata   metadata `json:"metadata"`
	}{apiVersion, kind, metadata{key.Name, key.Namespace, uid}}
	if key.Namespace == resource.NullNamespace {
		object.Metadata.Namespace = ""
	}
	text, err := json.Marshal(object)
	if err != nil { // strings always encode
		panic(err)
	}
	return text
}

// kinds knows the apiVersion and kind of a type: the usual ones, and those that it has seen.
type kinds struct{ seen sync.Map }

type apiKind struct{ apiVersion, kind string }

var usualKinds = map[string]apiKind{
	resource.TypePod:                   {"v1", "Pod"},
	resource.TypeConfigMap:             {"v1", "ConfigMap"},
	resource.TypeSecret:                {"v1", "Secret"},
	resource.TypeNode:                  {"v1", "Node"},
	resource.TypePersistentVolume:      {"v1", "PersistentVolume"},
	resource.TypePersistentVolumeClaim: {"v1", "PersistentVolumeClaim"},
	resource.TypeVolumeAttachment:      {"storage.k8s.io/v1", "VolumeAttachment"},
	resource.TypeDevice:                {devices.APIVersion, devices.KindDevice},
	resource.TypeDeviceModel:           {devices.APIVersion, devices.KindDeviceModel},
	"service":                          {"v1", "Service"},
	"endpoints":                        {"v1", "Endpoints"},
	"endpointslice":                    {"discovery.k8s.io/v1", "EndpointSlice"},
}

func (k *kinds) ofType(typ string) (apiVersion, kind string) {
	if v, ok := usualKinds[typ]; ok {
		return v.apiVersion, v.kind
	}
	if v, ok := k.seen.Load(typ); ok {
		a := v.(apiKind)
		return a.apiVersion, a.kind
	}
	return "", ""
}

// pushed reports whether objects of a type are sent unasked: only those are deleted when a node must not have them.
func (k *kinds) pushed(typ string) bool {
	switch typ {
	case resource.TypePersistentVolume, resource.TypePersistentVolumeClaim, resource.TypeVolumeAttachment:
		return false
	}
	_, kind := k.ofType(typ)
	return kind != ""
}

// saw remembers the kind of an object that is sent.
func (k *kinds) saw(ref Ref) {
	if _, ok := usualKinds[ref.Key.Type]; ok || ref.Kind == "" {
		return
	}
	if _, ok := k.seen.Load(ref.Key.Type); !ok {
		k.seen.Store(ref.Key.Type, apiKind{ref.APIVersion, ref.Kind})
	}
}
