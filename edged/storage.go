package edged

import (
	"context"
	"encoding/json"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/csi"
	"github.com/edgecore-io/edgecore/edged/metaclient"
	"github.com/edgecore-io/edgecore/edged/volume"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// storage makes the part that has the CSI drivers.
func (e *Edged) storage() *csi.Manager {
	o := csi.Options{
		Root: e.opts.RootDir, NodeName: e.opts.NodeName, Objects: &storageObjects{e.meta}, Tokens: &tokens{e.meta},
		Own: func(ctx context.Context, pod *v1.Pod, dir string) error {
			if own := volume.OwnershipOf(pod); own != nil {
				return volume.SetOwnership(ctx, dir, *own)
			}
			return nil
		},
		Event: func(pod *v1.Pod, eventType, reason, message string) {
			e.recorder.Eventf(pod, eventType, reason, "%s", message)
		},
		Claims: &claims{e.meta}, Grown: e.claimGrown, Others: e.claimUsages,
		Registered: func() { e.pool.PokeAll() }, InUse: e.wakeNode,
	}
	if e.opts.Node != nil {
		o.Cluster = e.meta
	}
	return csi.New(o)
}

// claimUsages returns how full the volumes of claims are that have no CSI driver.
func (e *Edged) claimUsages(ctx context.Context) []csi.Usage {
	var out []csi.Usage
	for _, u := range e.volumes.ClaimUsages(ctx) {
		out = append(out, csi.Usage{
			PodUID:     u.PodUID,
			Pod:        types.NamespacedName{Namespace: u.Claim.Namespace},
			Name:       u.Name,
			Claim:      u.Claim.Name,
			Capacity:   u.Capacity,
			Available:  u.Available,
			Used:       u.Used,
			Inodes:     u.Inodes,
			InodesFree: u.InodesFree,
			InodesUsed: u.InodesUsed,
		})
	}
	return out
}

// claimGrown tells the cloud how large a claim's file system is, and that nothing is left to be done for it.
func (e *Edged) claimGrown(ctx context.Context, claim *v1.PersistentVolumeClaim, size apiresource.Quantity) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{
		"capacity":                  map[string]any{"storage": size},
		"allocatedResourceStatuses": map[string]any{"storage": nil},
		"conditions": []map[string]any{
			{"type": v1.PersistentVolumeClaimFileSystemResizePending, "$patch": "delete"},
			{"type": v1.PersistentVolumeClaimResizing, "$patch": "delete"},
		},
	}})
	if err != nil {
		return err
	}
	return e.meta.PatchClaimStatus(ctx, claim.Namespace, claim.Name, patch)
}

// storageObjects gives the objects that CSI volumes depend on.
type storageObjects struct{ *metaclient.Client }

// Secret implements csi.Objects.
func (s *storageObjects) Secret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	return s.VolumeSecret(ctx, namespace, name)
}

// CSIDriver implements csi.Objects.
func (s *storageObjects) CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	return metaclient.Get[storagev1.CSIDriver](ctx, s.Client, resource.Key{Namespace: resource.NullNamespace, Type: resource.TypeCSIDriver, Name: name})
}

// VolumeAttachment implements csi.Objects.
func (s *storageObjects) VolumeAttachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error) {
	return metaclient.Get[storagev1.VolumeAttachment](ctx, s.Client, resource.Key{Namespace: resource.NullNamespace, Type: resource.TypeVolumeAttachment, Name: name})
}

// PodToken implements csi.Tokens.
func (t *tokens) PodToken(ctx context.Context, pod *v1.Pod, audience string, seconds int64) (*authenticationv1.TokenRequestStatus, error) {
	ask := &v1.ServiceAccountTokenProjection{Audience: audience}
	if seconds > 0 {
		ask.ExpirationSeconds = &seconds
	}
	got, err := t.request(ctx, pod, ask)
	if err != nil {
		return nil, err
	}
	return &got.Status, nil
}
