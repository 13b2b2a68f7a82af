// Package fakemeta is a metadata client for tests whose API server is a fake of client-go: that one has no metadata
// client with the same objects.
package fakemeta

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
)

// Of returns a metadata client that lists and watches the ConfigMaps and Secrets of another client. It has no other
// methods.
func Of(client kubernetes.Interface) metadata.Interface { return of{client} }

type of struct{ client kubernetes.Interface }

// IsWatchListSemanticsUnSupported says that the fake's watches do not begin with what there is.
func (of) IsWatchListSemanticsUnSupported() bool { return true }

// Resource implements metadata.Interface.
func (o of) Resource(r schema.GroupVersionResource) metadata.Getter {
	return &objects{client: o.client, resource: r.Resource}
}

type objects struct {
	metadata.Getter // nil: the methods that tests do not need
	client          kubernetes.Interface
	resource        string
}

func (o *objects) List(ctx context.Context, opts metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	var list runtime.Object
	var err error
	switch o.resource {
	case "configmaps":
		list, err = o.client.CoreV1().ConfigMaps(metav1.NamespaceAll).List(ctx, opts)
	case "secrets":
		list, err = o.client.CoreV1().Secrets(metav1.NamespaceAll).List(ctx, opts)
	default:
		err = fmt.Errorf("fakemeta has no %s", o.resource)
	}
	if err != nil {
		return nil, err
	}
	of, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	out := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: of.GetResourceVersion()}}
	err = meta.EachListItem(list, func(obj runtime.Object) error {
		o, err := meta.Accessor(obj)
		if err == nil {
			out.Items = append(out.Items, *meta.AsPartialObjectMetadata(o))
		}
		return err
	})
	return out, err
}

func (o *objects) Watch(ctx context.Context, opts metav1.ListOptions) (w watch.Interface, err error) {
	switch o.resource {
	case "configmaps":
		w, err = o.client.CoreV1().ConfigMaps(metav1.NamespaceAll).Watch(ctx, opts)
	case "secrets":
		w, err = o.client.CoreV1().Secrets(metav1.NamespaceAll).Watch(ctx, opts)
	default:
		err = fmt.Errorf("fakemeta has no %s", o.resource)
	}
	if err != nil {
		return nil, err
	}
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		if o, err := meta.Accessor(e.Object); err == nil {
			e.Object = meta.AsPartialObjectMetadata(o)
		}
		return e, true
	}), nil
}
