package volume

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Claims gives the claims and volumes of the cluster. apierrors.IsNotFound tells a missing one.
type Claims interface {
	PersistentVolumeClaim(ctx context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error)
	PersistentVolume(ctx context.Context, name string) (*v1.PersistentVolume, error)
}

// Spec is a volume that is not made of the pod alone, found through its claim or, for CSI, written in the pod.
type Spec struct {
	// Name is that of the volume's folder, as the kubelet's: the volume in the pod, or the PersistentVolume.
	Name string
	// PV is the volume of the cluster; nil for one that is written in the pod. Claim is how the pod came to it.
	PV    *v1.PersistentVolume
	Claim *v1.PersistentVolumeClaim
	// Inline is a CSI volume that is written in the pod; nil with a PV.
	Inline *v1.CSIVolumeSource
	// ReadOnly: the pod is to have the volume read-only, in all containers.
	ReadOnly bool
	// Block: the volume is to be a device (volumeDevices), not a file system.
	Block bool
}

// claimError is a claim that is not what a pod can have yet, in the words of the kubelet.
type claimError struct{ err error }

func (e *claimError) Error() string { return e.err.Error() }
func (e *claimError) Unwrap() error { return e.err }

// claimOf returns the name of the claim that a volume of a pod is from, "" for one without. A generic ephemeral
// volume has one of its own, named after the pod and the volume.
func claimOf(pod *v1.Pod, vol *v1.Volume) string {
	switch {
	case vol.PersistentVolumeClaim != nil:
		return vol.PersistentVolumeClaim.ClaimName
	case vol.Ephemeral != nil:
		return pod.Name + "-" + vol.Name
	}
	return ""
}

// resolve finds what is behind a volume that has a claim.
func (m *Manager) resolve(ctx context.Context, pod *v1.Pod, vol *v1.Volume) (Spec, error) {
	name := claimOf(pod, vol)
	if m.opts.Claims == nil {
		return Spec{}, fmt.Errorf("persistentVolumeClaim %q: this node has no access to claims", name)
	}
	claim, err := m.opts.Claims.PersistentVolumeClaim(ctx, pod.Namespace, name)
	if err != nil {
		return Spec{}, claimFault(pod, name, fmt.Errorf("failed to fetch PVC from API server: %w",
			missing(err, "persistentvolumeclaim", name)))
	}
	if err := checkClaim(pod, vol, claim); err != nil {
		return Spec{}, claimFault(pod, name, err)
	}
	pv, err := m.opts.Claims.PersistentVolume(ctx, claim.Spec.VolumeName)
	if err != nil {
		return Spec{}, claimFault(pod, name, fmt.Errorf("failed to fetch PV %s from API server: %w",
			claim.Spec.VolumeName, missing(err, "persistentvolume", claim.Spec.VolumeName)))
	}
	if err := checkBound(claim, pv); err != nil {
		return Spec{}, claimFault(pod, name, err)
	}
	spec := Spec{
		Name:  pv.Name,
		PV:    pv,
		Claim: claim,
		Block: pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == v1.PersistentVolumeBlock,
	}
	spec.ReadOnly = vol.PersistentVolumeClaim != nil && vol.PersistentVolumeClaim.ReadOnly
	if err := checkMode(pod, vol.Name, spec.Block); err != nil {
		return Spec{}, claimFault(pod, name, err)
	}
	return spec, nil
}

func claimFault(pod *v1.Pod, name string, err error) error {
	return &claimError{fmt.Errorf("error processing PVC %s/%s: %w", pod.Namespace, name, err)}
}

func missing(err error, kind, name string) error {
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%s %q not found", kind, name)
	}
	return err
}

// checkClaim says why a pod cannot use a claim; nil if it can.
func checkClaim(pod *v1.Pod, vol *v1.Volume, claim *v1.PersistentVolumeClaim) error {
	switch {
	case vol.Ephemeral != nil && !metav1.IsControlledBy(claim, pod):
		return fmt.Errorf("PVC %s/%s was not created for pod %s/%s (pod is not owner)", claim.Namespace, claim.Name,
			pod.Namespace, pod.Name)
	case claim.DeletionTimestamp != nil:
		// The cluster keeps a claim for as long as a pod has it: a pod that comes now may not have it.
		return errors.New("PVC is being deleted")
	case claim.Status.Phase != v1.ClaimBound || claim.Spec.VolumeName == "":
		return errors.New("PVC is not bound")
	}
	return nil
}

// checkBound reports whether a volume belongs to the claim that names it.
func checkBound(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) error {
	switch ref := pv.Spec.ClaimRef; {
	case ref == nil:
		return fmt.Errorf("found PV object %s with nil pv.Spec.ClaimRef indicating it is not yet bound to the claim",
			pv.Name)
	case ref.UID != claim.UID:
		return fmt.Errorf("found PV object %s with an unexpected pv.Spec.ClaimRef.UID (%s, the claim has %s)", pv.Name,
			ref.UID, claim.UID)
	}
	return nil
}

// checkMode compares what a volume is with how the containers use it.
func checkMode(pod *v1.Pod, name string, block bool) error {
	switch u := usesOf(pod)[name]; {
	case block && u.mounted:
		return fmt.Errorf("volume %s has volumeMode Block, but is specified in volumeMounts", name)
	case !block && u.device:
		return fmt.Errorf("volume %s has volumeMode Filesystem, but is specified in volumeDevices", name)
	}
	return nil
}
