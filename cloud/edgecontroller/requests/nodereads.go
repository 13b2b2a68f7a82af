package requests

import (
	"context"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/objects"
)

// readHandlers read objects in a node's name. What a node may read, the API server decides.
type readHandlers struct{ asNode kubernetes.Interface }

// Objects that a kubelet reads to run pods and that are not part of a pod. Edges query them rarely, once for a pod that
// names one, so they are not cached. All are read in the node's name.

// queryRuntimeClass returns a RuntimeClass; a node may read all.
func (h *readHandlers) queryRuntimeClass(ctx context.Context, r *request) result {
	o, err := h.asNode.NodeV1().RuntimeClasses().Get(ctx, r.key.Name, metav1.GetOptions{})
	return found(o, err)
}

// queryCSIDriver returns a CSIDriver; a node may read all.
func (h *readHandlers) queryCSIDriver(ctx context.Context, r *request) result {
	o, err := h.asNode.StorageV1().CSIDrivers().Get(ctx, r.key.Name, metav1.GetOptions{})
	return found(o, err)
}

// patchClaimStatus reports the size to which a node has grown a claim's file system. The API server lets a node change
// only that, and only for claims of its own pods.
func (h *readHandlers) patchClaimStatus(ctx context.Context, r *request) result {
	if _, err := patchText(r); err != nil {
		return written(nil, err, false)
	}
	o, err := h.asNode.CoreV1().PersistentVolumeClaims(r.key.Namespace).Patch(ctx, r.key.Name,
		types.StrategicMergePatchType, r.content, metav1.PatchOptions{}, "status")
	return patched(r, o, err)
}

func ownCSINode(r *request) error {
	if r.key.Name != r.node {
		return forbidden(r.key, "node %s has one CSINode only, %s", r.node, r.node)
	}
	return nil
}

func csiNodeOf(r *request) (*storagev1.CSINode, error) {
	if err := ownCSINode(r); err != nil {
		return nil, err
	}
	o, err := decode[storagev1.CSINode](r, "CSINode")
	if err != nil {
		return nil, err
	}
	if o.Name != r.node {
		return nil, badRequest(r.key, "the content is CSINode %q", o.Name)
	}
	return o, nil
}

func (h *readHandlers) queryCSINode(ctx context.Context, r *request) result {
	if err := ownCSINode(r); err != nil {
		return failed(err)
	}
	o, err := h.asNode.StorageV1().CSINodes().Get(ctx, r.node, metav1.GetOptions{})
	return found(o, err)
}

func (h *readHandlers) createCSINode(ctx context.Context, r *request) result {
	o, err := csiNodeOf(r)
	if err != nil {
		return written(nil, err, false)
	}
	o, err = h.asNode.StorageV1().CSINodes().Create(ctx, o, metav1.CreateOptions{})
	return written(o, err, false)
}

func (h *readHandlers) updateCSINode(ctx context.Context, r *request) result {
	o, err := csiNodeOf(r)
	if err != nil {
		return written(nil, err, false)
	}
	o, err = h.asNode.StorageV1().CSINodes().Update(ctx, o, metav1.UpdateOptions{})
	return written(o, err, false)
}

// queryClusterTrustBundle returns one bundle, or all of them without a name: a volume may select by signer and labels.
// API servers before 1.37 have v1beta1 bundles or none.
func (h *readHandlers) queryClusterTrustBundle(ctx context.Context, r *request) result {
	if r.key.Name == "" {
		return h.listClusterTrustBundles(ctx)
	}
	o, err := h.asNode.CertificatesV1().ClusterTrustBundles().Get(ctx, r.key.Name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return found(o, err)
	}
	old, oldErr := h.asNode.CertificatesV1beta1().ClusterTrustBundles().Get(ctx, r.key.Name,
		metav1.GetOptions{})
	if oldErr != nil {
		return failed(err)
	}
	return found(bundle(old), nil)
}

func (h *readHandlers) listClusterTrustBundles(ctx context.Context) result {
	list, err := h.asNode.CertificatesV1().ClusterTrustBundles().List(ctx, metav1.ListOptions{})
	switch {
	case err == nil:
	case apierrors.IsNotFound(err):
		old, oldErr := h.asNode.CertificatesV1beta1().ClusterTrustBundles().List(ctx, metav1.ListOptions{})
		if oldErr != nil {
			return failed(err)
		}
		list = &certificatesv1.ClusterTrustBundleList{}
		for i := range old.Items {
			list.Items = append(list.Items, *bundle(&old.Items[i]))
		}
	default:
		return failed(err)
	}
	items := make([]any, len(list.Items))
	for i := range list.Items {
		if items[i], err = objects.WithKind(&list.Items[i]); err != nil {
			return failed(err)
		}
	}
	return result{content: items}
}

// bundle converts a v1beta1 bundle to v1; the fields are the same.
func bundle(old *certificatesv1beta1.ClusterTrustBundle) *certificatesv1.ClusterTrustBundle {
	return &certificatesv1.ClusterTrustBundle{ObjectMeta: old.ObjectMeta,
		Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: old.Spec.SignerName, TrustBundle: old.Spec.TrustBundle}}
}

func (h *readHandlers) queryPersistentVolume(ctx context.Context, r *request) result {
	o, err := h.asNode.CoreV1().PersistentVolumes().Get(ctx, r.key.Name, metav1.GetOptions{})
	return found(o, err)
}

func (h *readHandlers) queryPersistentVolumeClaim(ctx context.Context, r *request) result {
	o, err := h.asNode.CoreV1().PersistentVolumeClaims(r.key.Namespace).Get(ctx, r.key.Name,
		metav1.GetOptions{})
	return found(o, err)
}

func (h *readHandlers) queryVolumeAttachment(ctx context.Context, r *request) result {
	o, err := h.asNode.StorageV1().VolumeAttachments().Get(ctx, r.key.Name, metav1.GetOptions{})
	return found(o, err)
}

// queryService asks the API server: the caches have only what the nodes are sent of a Service, and edges rarely query.
func (h *readHandlers) queryService(ctx context.Context, r *request) result {
	o, err := h.asNode.CoreV1().Services(r.key.Namespace).Get(ctx, r.key.Name, metav1.GetOptions{})
	return found(o, err)
}

// queryEndpoints asks the API server: Endpoints change with every probe, and edges rarely query them, so they are not
// cached.
func (h *readHandlers) queryEndpoints(ctx context.Context, r *request) result {
	o, err := h.asNode.CoreV1().Endpoints(r.key.Namespace).Get(ctx, r.key.Name, metav1.GetOptions{})
	return found(o, err)
}
