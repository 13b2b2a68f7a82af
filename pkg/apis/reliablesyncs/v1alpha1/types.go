// Package v1alpha1 is reliablesyncs.kubeedge.io/v1alpha1: what edges without an inventory have acked. It is stored in
// the API to survive restarts of cloudcore; KubeEdge's cloudcore reads it as well (docs/wire.md, Delivery).
package v1alpha1

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// The identity of the API.
const (
	Group   = "reliablesyncs.kubeedge.io"
	Version = "v1alpha1"

	KindObjectSync        = "ObjectSync"
	KindClusterObjectSync = "ClusterObjectSync"
)

// Group and version, and the two resources.
var (
	GroupVersion       = schema.GroupVersion{Group: Group, Version: Version}
	ObjectSyncs        = GroupVersion.WithResource("objectsyncs")
	ClusterObjectSyncs = GroupVersion.WithResource("clusterobjectsyncs")
)

// NeverAcked is the resource version in the status of an object that was sent and never acked. KubeEdge parses the
// versions as numbers, and stops at one that is not a number.
const NeverAcked = "0"

// ObjectSync records which state of an object in its namespace a node holds. Its name is Name(node, uid). A
// ClusterObjectSync does the same for a cluster-scoped object.
type ObjectSync struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              ObjectSyncSpec   `json:"spec"`
	Status            ObjectSyncStatus `json:"status,omitempty,omitzero"`
}

// ObjectSyncSpec names the object.
type ObjectSyncSpec struct {
	ObjectAPIVersion string `json:"objectAPIVersion,omitempty"`
	ObjectKind       string `json:"objectKind,omitempty"`
	ObjectName       string `json:"objectName,omitempty"`
}

// ObjectSyncStatus is what was acked.
type ObjectSyncStatus struct {
	// ObjectResourceVersion of the object as it was acked.
	ObjectResourceVersion string `json:"objectResourceVersion,omitempty"`
	// ObjectVersion is the short hash of what was acked, without fields that only the edge changes. KubeEdge does not
	// set it.
	ObjectVersion string `json:"objectVersion,omitempty"`
}

// Name returns the name of a sync object.
func Name(node string, uid types.UID) string { return node + "." + string(uid) }

// SplitName parses such a name: node names may contain dots, UIDs do not.
func SplitName(name string) (node string, uid types.UID, ok bool) {
	i := strings.LastIndexByte(name, '.')
	if i <= 0 || i == len(name)-1 {
		return "", "", false
	}
	return name[:i], types.UID(name[i+1:]), true
}
