package objectsync

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/edgecore-io/edgecore/cloud/cloudhub/queue"
	"github.com/edgecore-io/edgecore/pkg/apis/reliablesyncs/v1alpha1"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// id names a sync object; the namespace of cluster-scoped ones is empty.
type id struct{ namespace, name string }

func (i id) String() string {
	if i.namespace == "" {
		return i.name
	}
	return i.namespace + "/" + i.name
}

// record is a sync object in memory. There may be hundreds of thousands. It has only those methods of metav1.Object
// that the cache calls.
type record struct {
	metav1.Object
	id
	revision string // of the sync object itself
	kind     string // lower case, as in resources
	object   string
	rv       string
	version  string
}

// GetName implements metav1.Object.
func (r *record) GetName() string { return r.name }

// GetNamespace implements metav1.Object.
func (r *record) GetNamespace() string { return r.namespace }

// GetResourceVersion implements metav1.Object.
func (r *record) GetResourceVersion() string { return r.revision }

// GetUID implements metav1.Object.
func (r *record) GetUID() types.UID { return "" }

func (r *record) node() string {
	node, _, _ := v1alpha1.SplitName(r.name)
	return node
}

// key returns the object that the record is about.
func (r *record) key() resource.Key {
	k := resource.Key{Namespace: r.namespace, Type: r.kind, Name: r.object}
	if k.Namespace == "" {
		k.Namespace = resource.NullNamespace
	}
	return k
}

func (r *record) state() queue.State {
	_, uid, _ := v1alpha1.SplitName(r.name)
	return queue.State{UID: uid, Version: r.version, ResourceVersion: r.rv}
}

// kindNames are shared by all records.
var kindNames = map[string]string{
	"Pod": resource.TypePod, "ConfigMap": resource.TypeConfigMap, "Secret": resource.TypeSecret,
	"Node": resource.TypeNode,
}

// trim converts what the API server sent to a record. It is called again with its own result.
func trim(o any) (any, error) {
	switch o := o.(type) {
	case *record, cache.DeletedFinalStateUnknown:
		return o, nil
	case *unstructured.Unstructured:
		text := func(path ...string) string {
			s, _, err := unstructured.NestedString(o.Object, path...)
			if err != nil {
				return "" // another type than the schema's counts as missing
			}
			return strings.Clone(s)
		}
		kind := text("spec", "objectKind")
		typ, ok := kindNames[kind]
		if !ok {
			typ = strings.ToLower(kind)
		}
		return &record{
			id:       id{strings.Clone(o.GetNamespace()), strings.Clone(o.GetName())},
			revision: strings.Clone(o.GetResourceVersion()),
			kind:     typ,
			object:   text("spec", "objectName"),
			rv:       text("status", "objectResourceVersion"),
			version:  text("status", "objectVersion"),
		}, nil
	}
	return nil, fmt.Errorf("a sync object of type %T", o)
}

// byNode is the index of records.
const byNode = "node"

var indexers = cache.Indexers{byNode: func(o any) ([]string, error) {
	r, ok := o.(*record)
	if !ok || r.node() == "" {
		return nil, nil
	}
	return []string{r.node()}, nil
}}
