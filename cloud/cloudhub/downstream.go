package cloudhub

import (
	"encoding/json"
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/pkg/resource"
)

// Ref names one object that a node must have. A cluster-scoped object's key has the namespace "null".
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
	// JSON has apiVersion and kind. Nodes may share it: it must not be modified.
	JSON json.RawMessage
	// Deleting is set for an object with a deletion timestamp.
	Deleting bool
	// After names an object that a node must be sent first if both are due; zero is none. KubeEdge's edgecore refuses a
	// device for good if it comes before its model.
	After resource.Key
	// Done, if set, is called once when the hub needs the object no more. It must not block.
	Done func()
}

// callDone calls Done.
func (o *Object) callDone() {
	if o != nil && o.Done != nil {
		o.Done()
	}
}

// Downstream decides which objects each node must have. It answers from memory, but may ask the API server about an
// object that it does not have. It is called from many goroutines. An implementation must call Hub.Changed for each
// object of a node that is new, changed or deleted.
type Downstream interface {
	// Desired lists all that a node must have: its pods, the ConfigMaps and Secrets that they name, its Node object.
	Desired(node string) []Ref
	// Object returns an object's current state; nil and no error if the node must not have it. After ErrNotServed or
	// ErrWithheld the node keeps what it has of the object. Other errors are tried again.
	Object(node string, key resource.Key) (*Object, error)
}

// ErrNotServed means that nobody decides on objects of a type here.
var ErrNotServed = errors.New("not served by this cloudcore")

// ErrWithheld means that a node is not sent an object, or not this version of it. Downstream must call Hub.Changed when
// that is over.
var ErrWithheld = errors.New("withheld from the node")

// WithheldError is an ErrWithheld that says which object is withheld. Another one of its name that a node has was
// deleted.
type WithheldError struct {
	UID types.UID
	// Why is the reason.
	Why string
}

// Error implements error.
func (e *WithheldError) Error() string { return ErrWithheld.Error() + ": " + e.Why }

// Unwrap returns ErrWithheld.
func (e *WithheldError) Unwrap() error { return ErrWithheld }
