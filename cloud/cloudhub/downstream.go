package cloudhub

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/pkg/resource"
)

// Ref names one object that a node is to have. The namespace of the key of an object without one is "null".
type Ref struct {
	Key             resource.Key
	UID             types.UID
	APIVersion      string
	Kind            string
	ResourceVersion string
}

// Object is an object as it is sent.
type Object struct {
	Ref
	// Version is wire.Version of JSON.
	Version string
	// JSON has apiVersion and kind. Nodes may share it: nobody writes to it.
	JSON json.RawMessage
	// Deleting is set for an object with a deletion timestamp.
	Deleting bool
}

// Downstream says what each node is to have. It answers from memory, but may ask the API server about an object that it
// does not have, and is called from many goroutines. Anyone who implements it calls Hub.Changed for each object of a
// node that is new, changed or gone.
type Downstream interface {
	// Desired is all that a node is to have: its pods, the configmaps and secrets that they name, its node object.
	Desired(node string) []Ref
	// Object is an object as it is now; nil and no error when the node is not to have it.
	Object(node string, key resource.Key) (*Object, error)
}
