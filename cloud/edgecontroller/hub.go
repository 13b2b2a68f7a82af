package edgecontroller

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// Hub is what the controller needs from the hub.
type Hub interface {
	// Changed marks an object of a node as new, changed or deleted. It never blocks.
	Changed(node string, key resource.Key)
	// StatusChanged reports that nothing but the status of a node's pod changed. It never blocks.
	StatusChanged(node string, key resource.Key)
	// Holds reports that a node has an object that the hub may not know of.
	Holds(node string, key resource.Key, uid types.UID)
	// RequestStatus asks a node to report a pod's status again. It returns false if the node is not connected, or
	// cannot be asked. It never blocks.
	RequestStatus(node string, key resource.Key, uid types.UID) bool
	// Disconnect ends a node's session.
	Disconnect(node, reason string)
	// Recorded passes on a Node's InstanceAnnotation. It never blocks.
	Recorded(node string, r cloudhub.Record)
	// ToRecord returns what a Node's annotation must become, and how long to wait before asking again; ok is false if
	// there is nothing to write. It never blocks.
	ToRecord(node string, have cloudhub.Record) (next cloudhub.Record, wait time.Duration, ok bool)
}
