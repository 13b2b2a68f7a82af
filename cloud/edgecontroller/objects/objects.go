// Package objects prepares objects of the API server for nodes: with apiVersion and kind, which typed clients leave
// out.
package objects

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// Object is any API object.
type Object interface {
	runtime.Object
	metav1.Object
}

// WithKind returns a shallow copy of an object with apiVersion and kind, which typed clients leave out, and without
// managedFields, which no edge needs. The original may be shared, and is not modified.
func WithKind(obj Object) (Object, error) {
	gvks, _, err := scheme.Scheme.ObjectKinds(obj)
	if err != nil || len(gvks) == 0 {
		return nil, fmt.Errorf("kind of %T: %w", obj, err)
	}
	out := Shallow(obj)
	out.GetObjectKind().SetGroupVersionKind(gvks[0])
	out.SetManagedFields(nil)
	return out, nil
}

// Shallow copies the outermost struct, so that its fields may be set.
func Shallow(obj Object) Object {
	switch o := obj.(type) {
	case *v1.Pod:
		c := *o
		return &c
	case *v1.Node:
		c := *o
		return &c
	case *v1.ConfigMap:
		c := *o
		return &c
	case *v1.Secret:
		c := *o
		return &c
	case *v1.Service:
		c := *o
		return &c
	}
	return obj.DeepCopyObject().(Object)
}
