// Package resource names objects as messages and the store do: "<namespace>/<type>[/<name>]" (docs/wire.md,
// Resources).
package resource

import (
	"fmt"
	"strings"
)

// NullNamespace stands for no namespace.
const NullNamespace = "null"

// Types of resources on the wire.
const (
	TypePod                   = "pod"
	TypePodList               = "podlist"
	TypePodPatch              = "podpatch"
	TypePodPatchList          = "podpatchlist"
	TypePodStatus             = "podstatus"
	TypeConfigMap             = "configmap"
	TypeSecret                = "secret"
	TypeNode                  = "node"
	TypeNodePatch             = "nodepatch"
	TypeNodeStatus            = "nodestatus"
	TypeLease                 = "lease"
	TypeEvent                 = "event"
	TypeServiceAccountToken   = "serviceaccounttoken"
	TypePersistentVolume      = "persistentvolume"
	TypePersistentVolumeClaim = "persistentvolumeclaim"
	TypeVolumeAttachment      = "volumeattachment"
	TypeService               = "service"
	TypeRuntimeClass          = "runtimeclass"
	TypeCSIDriver             = "csidriver"
	TypeCSINode               = "csinode"
	TypeClusterTrustBundle    = "clustertrustbundle"
	TypeEndpoints             = "endpoints"
	TypeCSR                   = "certificatesigningrequest"

	// What a node's authenticated port asks the cluster about its callers; KubeEdge's clouds do not know these. A
	// review has the node's name; there is only one ClientCA.
	TypeTokenReview  = "tokenreview"
	TypeAccessReview = "subjectaccessreview"
	TypeClientCA     = "clientca"

	// Devices and their models come from the cloud. The twin of a device (its state and values) and the mappers that
	// have registered are the node's own rows in its store.
	TypeDevice       = "device"
	TypeDeviceModel  = "devicemodel"
	TypeDeviceTwin   = "devicetwin"
	TypeDeviceMapper = "devicemapper"

	// TypeLink is the state of the link, for the modules of the edge.
	TypeLink = "link"
)

// Key names an object, or with an empty Name all of a type.
type Key struct {
	Namespace, Type, Name string
}

// Parse parses a key from the wire: it must have two or three parts, none empty.
func Parse(text string) (Key, error) {
	parts := strings.SplitN(text, "/", 4)
	if len(parts) != 2 && len(parts) != 3 {
		return Key{}, fmt.Errorf("resource %.200q: want <namespace>/<type> or <namespace>/<type>/<name>", text)
	}
	for _, p := range parts {
		if p == "" {
			return Key{}, fmt.Errorf("resource %.200q: it has an empty part", text)
		}
	}
	k := Key{Namespace: parts[0], Type: parts[1]}
	if len(parts) == 3 {
		k.Name = parts[2]
	}
	return k, nil
}

// String is the form on the wire.
func (k Key) String() string {
	if k.Name == "" {
		return k.Namespace + "/" + k.Type
	}
	return k.Namespace + "/" + k.Type + "/" + k.Name
}
