package csi

import (
	"errors"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/storage/volume"
)

// The lifecycle modes, as records and CSIDriver objects have them.
const (
	persistent = string(storagev1.VolumeLifecyclePersistent)
	ephemeral  = string(storagev1.VolumeLifecycleEphemeral)
)

// request is a volume that a pod wants, worked out of its spec.
type request struct {
	pod  *v1.Pod
	spec volume.Spec
	dir  string

	driver, handle string
	mode           string // of the lifecycle
	fsType         string
	readOnly       bool
	access         []v1.PersistentVolumeAccessMode
	mountOptions   []string
	attributes     map[string]string

	stageSecret, publishSecret, expandSecret *v1.SecretReference
}

// ask works a request out. It is pure.
func ask(pod *v1.Pod, spec volume.Spec, dir string) (*request, error) {
	r := &request{pod: pod, spec: spec, dir: dir, readOnly: spec.ReadOnly}
	switch {
	case spec.PV != nil && spec.PV.Spec.CSI != nil:
		src := spec.PV.Spec.CSI
		r.driver, r.handle, r.mode, r.fsType, r.attributes = src.Driver, src.VolumeHandle, persistent, src.FSType,
			src.VolumeAttributes
		r.access, r.mountOptions = spec.PV.Spec.AccessModes, spec.PV.Spec.MountOptions
		r.stageSecret, r.publishSecret, r.expandSecret = src.NodeStageSecretRef, src.NodePublishSecretRef,
			src.NodeExpandSecretRef
	case spec.Inline != nil:
		src := spec.Inline
		r.driver, r.handle, r.mode, r.attributes = src.Driver, handleOf(pod.UID, spec.Name), ephemeral,
			src.VolumeAttributes
		r.fsType, r.readOnly = ptr.Deref(src.FSType, ""), r.readOnly || ptr.Deref(src.ReadOnly, false)
		r.access = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
		if src.NodePublishSecretRef != nil {
			r.publishSecret = &v1.SecretReference{Namespace: pod.Namespace, Name: src.NodePublishSecretRef.Name}
		}
	default:
		return nil, fmt.Errorf("volume %s is not a CSI volume", spec.Name)
	}
	if r.handle == "" {
		return nil, errors.New("the volume has no volumeHandle")
	}
	if err := checkName(r.driver); err != nil {
		return nil, fmt.Errorf("CSI driver %w", err)
	}
	return r, nil
}

func (r *request) record(node string) record {
	return record{
		Driver:    r.driver,
		Handle:    r.handle,
		Name:      r.spec.Name,
		Node:      node,
		Lifecycle: r.mode,
		Block:     r.spec.Block,
	}
}

// mounted is what is kept of it in memory.
func (r *request) mounted(rec record, path string) mounted {
	m := mounted{
		record: rec,
		path:   path,
		pod:    types.NamespacedName{Namespace: r.pod.Namespace, Name: r.pod.Name},
		uid:    r.pod.UID,
		block:  rec.Block,
		ready:  true,
	}
	if r.spec.Claim != nil {
		m.claim = r.spec.Claim.Name
	}
	return m
}

// accessMode puts the first of a volume's access modes into CSI's words.
func accessMode(modes []v1.PersistentVolumeAccessMode, can abilities) csi.VolumeCapability_AccessMode_Mode {
	first := v1.ReadWriteOnce
	if len(modes) > 0 {
		first = modes[0]
	}
	multi := can[csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER]
	switch first {
	case v1.ReadOnlyMany:
		return csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case v1.ReadWriteMany:
		return csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case v1.ReadWriteOncePod:
		if multi {
			return csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
		}
	case v1.ReadWriteOnce:
		if multi {
			return csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
		}
	}
	return csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
}

// capability is how the driver is to give the volume. group is the fsGroup that it applies itself, "" for none.
func (r *request) capability(can abilities, group string) *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: accessMode(r.access, can)}}
	if r.spec.Block {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		return c
	}
	c.AccessType = &csi.VolumeCapability_Mount{
		Mount: &csi.VolumeCapability_MountVolume{FsType: r.fsType, MountFlags: r.mountOptions, VolumeMountGroup: group},
	}
	return c
}

// onePod reports whether only one pod may have the volume at a time.
func (r *request) onePod() bool { return slices.Contains(r.access, v1.ReadWriteOncePod) }

// ownership says who applies the pod's fsGroup to a volume: the driver, this node, or neither.
func (r *request) ownership(policy storagev1.FSGroupPolicy, can abilities) (driver, node bool) {
	if r.group() == nil || r.spec.Block {
		return false, false
	}
	if can[csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP] {
		return true, false
	}
	if r.readOnly || policy == storagev1.NoneFSGroupPolicy {
		return false, false
	}
	if policy == storagev1.FileFSGroupPolicy {
		return false, true
	}
	once := slices.Contains(r.access, v1.ReadWriteOnce) || slices.Contains(r.access, v1.ReadWriteOncePod)
	return false, r.fsType != "" && once
}

func (r *request) group() *int64 {
	if sc := r.pod.Spec.SecurityContext; sc != nil {
		return sc.FSGroup
	}
	return nil
}

// driverInfo are what the cluster says of a driver.
type driverInfo struct {
	// attach: the volume has to be attached to the node first.
	attach, podInfo, republish, tokensAsSecrets bool
	policy                                      storagev1.FSGroupPolicy
	tokens                                      []storagev1.TokenRequest
}

// driverInfoOf reads a driver's CSIDriver; nil means that it has none or, unless known, that this is unknown. The error
// says that the driver does not have volumes of this kind.
func driverInfoOf(name string, obj *storagev1.CSIDriver, known bool, mode string) (driverInfo, error) {
	if obj == nil {
		if known && mode == ephemeral {
			return driverInfo{}, fmt.Errorf("volume mode %q not supported by driver %s (no CSIDriver object)", mode,
				name)
		}
		return driverInfo{attach: mode == persistent, policy: storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy}, nil
	}
	s := &obj.Spec
	modes := s.VolumeLifecycleModes
	if len(modes) == 0 {
		modes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
	if !slices.Contains(modes, storagev1.VolumeLifecycleMode(mode)) {
		return driverInfo{}, fmt.Errorf("volume mode %q not supported by driver %s (only supports %q)", mode, name,
			modes)
	}
	return driverInfo{
		attach:          mode == persistent && ptr.Deref(s.AttachRequired, true),
		podInfo:         ptr.Deref(s.PodInfoOnMount, false),
		republish:       ptr.Deref(s.RequiresRepublish, false),
		tokensAsSecrets: ptr.Deref(s.ServiceAccountTokenInSecrets, false),
		policy:          ptr.Deref(s.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy),
		tokens:          s.TokenRequests,
	}, nil
}
