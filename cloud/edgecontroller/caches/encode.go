package caches

import (
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/objects"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// encode returns an object's JSON with apiVersion and kind.
func encode(obj objects.Object) (json.RawMessage, schema.GroupVersionKind, error) {
	out, err := objects.WithKind(obj)
	if err != nil {
		return nil, schema.GroupVersionKind{}, err
	}
	data, err := json.Marshal(out)
	if err != nil {
		return nil, schema.GroupVersionKind{}, fmt.Errorf("encode %T %s/%s: %w", obj, obj.GetNamespace(), obj.GetName(),
			err)
	}
	return data, out.GetObjectKind().GroupVersionKind(), nil
}

// RefTo returns the hub's reference to an object. All objects that are sent are core/v1.
func RefTo(key resource.Key, kind string, obj metav1.Object) cloudhub.Ref {
	return cloudhub.Ref{
		Key:             key,
		UID:             obj.GetUID(),
		APIVersion:      "v1",
		Kind:            kind,
		ResourceVersion: obj.GetResourceVersion(),
	}
}

// ToSend returns an object in the form that the hub sends.
func ToSend(key resource.Key, obj objects.Object) (*cloudhub.Object, error) {
	if pod, ok := obj.(*v1.Pod); ok && IsTrimmed(pod) {
		return nil, fmt.Errorf("%s: %w", key, ErrTrimmed)
	}
	data, gvk, err := encode(obj)
	if err != nil {
		return nil, err
	}
	version, err := wire.Version(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return &cloudhub.Object{
		Ref: RefTo(key, gvk.Kind, obj), Version: version, JSON: data, Deleting: obj.GetDeletionTimestamp() != nil,
	}, nil
}

// PodKey returns the key of a pod.
func PodKey(pod *v1.Pod) resource.Key {
	return resource.Key{Namespace: pod.Namespace, Type: resource.TypePod, Name: pod.Name}
}

// NodeKey returns the key of a Node.
func NodeKey(node string) resource.Key {
	return resource.Key{Namespace: resource.NullNamespace, Type: resource.TypeNode, Name: node}
}

// ServiceKey returns the key of a Service.
func ServiceKey(s *v1.Service) resource.Key {
	return resource.Key{Namespace: s.Namespace, Type: resource.TypeService, Name: s.Name}
}
