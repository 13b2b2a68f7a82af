// Package metaobjects gets objects of the API for volumes, CSI drivers and containers. All come by way of metamanager:
// from the API server while there is a link, and otherwise as they were last seen.
package metaobjects

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/podstate/admission"
	"github.com/edgecore-io/edgecore/edged/podstate/metaclient"
	"github.com/edgecore-io/edgecore/edged/podstate/source"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// Objects gets objects. It implements the interfaces of packages volume and csi for them. Its methods may be called
// from any goroutine.
type Objects struct {
	meta     *metaclient.Client
	nodeName string
}

// New returns the objects for a node.
func New(meta *metaclient.Client, nodeName string) *Objects {
	return &Objects{meta: meta, nodeName: nodeName}
}

// clusterKey is the key of an object without a namespace; the name "" stands for all objects of a type.
func clusterKey(kind, name string) resource.Key {
	return resource.Key{Namespace: resource.NullNamespace, Type: kind, Name: name}
}

// PersistentVolumeClaim implements volume.Claims.
func (o *Objects) PersistentVolumeClaim(
	ctx context.Context, namespace, name string,
) (*v1.PersistentVolumeClaim, error) {
	return metaclient.Get[v1.PersistentVolumeClaim](ctx, o.meta, resource.Key{
		Namespace: namespace,
		Type:      resource.TypePersistentVolumeClaim,
		Name:      name,
	})
}

// PersistentVolume implements volume.Claims.
func (o *Objects) PersistentVolume(ctx context.Context, name string) (*v1.PersistentVolume, error) {
	return metaclient.Get[v1.PersistentVolume](ctx, o.meta, clusterKey(resource.TypePersistentVolume, name))
}

// ClusterTrustBundle implements volume.Bundles.
func (o *Objects) ClusterTrustBundle(ctx context.Context, name string) (*certificatesv1.ClusterTrustBundle, error) {
	key := clusterKey(resource.TypeClusterTrustBundle, name)
	return metaclient.Get[certificatesv1.ClusterTrustBundle](ctx, o.meta, key)
}

// ClusterTrustBundles implements volume.Bundles.
func (o *Objects) ClusterTrustBundles(ctx context.Context) ([]certificatesv1.ClusterTrustBundle, error) {
	all := clusterKey(resource.TypeClusterTrustBundle, "")
	list, err := metaclient.Get[[]certificatesv1.ClusterTrustBundle](ctx, o.meta, all)
	if err != nil {
		return nil, err
	}
	return *list, nil
}

// Selects reports whether a selector matches this node, by the labels of its Node as last seen.
func (o *Objects) Selects(ctx context.Context, selector *v1.NodeSelector) (bool, error) {
	node, err := o.meta.Node(ctx, o.nodeName)
	if err != nil {
		return false, fmt.Errorf("labels of node %s are unknown: %w", o.nodeName, err)
	}
	return admission.Selects(node.Name, node.Labels, selector), nil
}

// Services returns the services whose variables a pod gets. If they cannot be read, the pod starts without.
func (o *Objects) Services(ctx context.Context, pod *v1.Pod) []v1.Service {
	var all []v1.Service
	namespaces := []string{v1.NamespaceDefault}
	if pod.Namespace != v1.NamespaceDefault {
		namespaces = append(namespaces, pod.Namespace)
	}
	for _, ns := range namespaces {
		list, err := o.meta.Services(ctx, ns)
		if err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "Services not read; the pod starts without their variables", "pod", klog.KObj(pod),
				"namespace", ns)
		}
		all = append(all, list...)
	}
	return all
}

// tokenSeconds is the lifetime of a token that is requested where the pod does not say.
const tokenSeconds = 3600

// Token implements volume.Tokens.
func (o *Objects) Token(
	ctx context.Context, pod *v1.Pod, ask *v1.ServiceAccountTokenProjection,
) (string, time.Time, error) {
	got, err := o.request(ctx, pod, ask)
	if err != nil {
		return "", time.Time{}, err
	}
	return got.Status.Token, renewAt(got, time.Now()), nil
}

// The limits of the time after which a token that could not be renewed is asked for again.
const (
	minTokenRetry = 30 * time.Second
	maxTokenRetry = 4 * time.Minute
)

// renewAt returns when a token is to be asked for again: when metamanager renews it. A token that could not be renewed
// in time is asked for again while a part of its life is left. Later than that nothing is urgent: either
// kube-apiserver made it for longer than it says, or only a new link helps, with which all pods are synced.
func renewAt(token *authenticationv1.TokenRequest, now time.Time) time.Time {
	life := time.Duration(ptr.Deref(token.Spec.ExpirationSeconds, tokenSeconds)) * time.Second
	expires := token.Status.ExpirationTimestamp.Time
	if at := expires.Add(resource.TokenAge(life) - life); at.After(now) {
		return at
	}
	left := expires.Sub(now)
	if left <= 0 {
		return now.Add(maxTokenRetry)
	}
	return now.Add(min(max(left/4, minTokenRetry), maxTokenRetry))
}

// request returns a stored token, or requests one.
func (o *Objects) request(
	ctx context.Context, pod *v1.Pod, ask *v1.ServiceAccountTokenProjection,
) (*authenticationv1.TokenRequest, error) {
	if source.IsStatic(pod) {
		return nil,
			fmt.Errorf("a static pod has no service account, and so no token; remove the source from the manifest")
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To(ptr.Deref(ask.ExpirationSeconds, tokenSeconds)),
		BoundObjectRef: &authenticationv1.BoundObjectReference{
			APIVersion: "v1",
			Kind:       "Pod",
			Name:       pod.Name,
			UID:        pod.UID,
		},
	}}
	if ask.Audience != "" {
		request.Spec.Audiences = []string{ask.Audience}
	}
	got, err := o.meta.Token(ctx, pod.Namespace, cmp.Or(pod.Spec.ServiceAccountName, "default"), request)
	if err != nil {
		return nil, fmt.Errorf("failed to fetch token: %w", err)
	}
	return got, nil
}

// ClaimGrown reports that the file system of a claim has been grown to size.
func (o *Objects) ClaimGrown(ctx context.Context, claim *v1.PersistentVolumeClaim, size apiresource.Quantity) error {
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
	return o.meta.PatchClaimStatus(ctx, claim.Namespace, claim.Name, patch)
}

// Secret implements csi.Objects.
func (o *Objects) Secret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	return o.meta.VolumeSecret(ctx, namespace, name)
}

// CSIDriver implements csi.Objects.
func (o *Objects) CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	return metaclient.Get[storagev1.CSIDriver](ctx, o.meta, clusterKey(resource.TypeCSIDriver, name))
}

// VolumeAttachment implements csi.Objects.
func (o *Objects) VolumeAttachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error) {
	return metaclient.Get[storagev1.VolumeAttachment](ctx, o.meta, clusterKey(resource.TypeVolumeAttachment, name))
}

// PodToken implements csi.Tokens.
func (o *Objects) PodToken(
	ctx context.Context, pod *v1.Pod, audience string, seconds int64,
) (*authenticationv1.TokenRequestStatus, error) {
	ask := &v1.ServiceAccountTokenProjection{Audience: audience}
	if seconds > 0 {
		ask.ExpirationSeconds = &seconds
	}
	got, err := o.request(ctx, pod, ask)
	if err != nil {
		return nil, err
	}
	return &got.Status, nil
}
