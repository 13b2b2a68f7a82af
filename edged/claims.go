package edged

import (
	"context"
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/admission"
	"github.com/edgecore-io/edgecore/edged/metaclient"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// claims asks for what claims are bound to: the cloud, while there is a link, and what it last said. It
// implements volume.Claims.
type claims struct{ meta *metaclient.Client }

// PersistentVolumeClaim implements volume.Claims.
func (c *claims) PersistentVolumeClaim(ctx context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error) {
	return metaclient.Get[v1.PersistentVolumeClaim](ctx, c.meta, resource.Key{Namespace: namespace, Type: resource.TypePersistentVolumeClaim, Name: name})
}

// PersistentVolume implements volume.Claims.
func (c *claims) PersistentVolume(ctx context.Context, name string) (*v1.PersistentVolume, error) {
	return metaclient.Get[v1.PersistentVolume](ctx, c.meta, resource.Key{Namespace: resource.NullNamespace, Type: resource.TypePersistentVolume, Name: name})
}

// bundles asks for trust bundles as claims does. It implements volume.Bundles.
type bundles struct{ meta *metaclient.Client }

// ClusterTrustBundle implements volume.Bundles.
func (b *bundles) ClusterTrustBundle(ctx context.Context, name string) (*certificatesv1.ClusterTrustBundle, error) {
	return metaclient.Get[certificatesv1.ClusterTrustBundle](ctx, b.meta, resource.Key{Namespace: resource.NullNamespace, Type: resource.TypeClusterTrustBundle, Name: name})
}

// ClusterTrustBundles implements volume.Bundles.
func (b *bundles) ClusterTrustBundles(ctx context.Context) ([]certificatesv1.ClusterTrustBundle, error) {
	list, err := metaclient.Get[[]certificatesv1.ClusterTrustBundle](ctx, b.meta, resource.Key{Namespace: resource.NullNamespace, Type: resource.TypeClusterTrustBundle})
	if err != nil {
		return nil, err
	}
	return *list, nil
}

// selects tells whether this node is one that a selector means, by the labels that its Node has, or had when there was a
// link.
func (e *Edged) selects(ctx context.Context, selector *v1.NodeSelector) (bool, error) {
	node, err := e.meta.Node(ctx, e.opts.NodeName)
	if err != nil {
		return false, fmt.Errorf("labels of node %s are not known: %w", e.opts.NodeName, err)
	}
	return admission.Selects(node.Name, node.Labels, selector), nil
}
