package volume

import (
	"bytes"
	"cmp"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Bundles gives the trust bundles of the cluster. apierrors.IsNotFound tells a missing one.
type Bundles interface {
	ClusterTrustBundle(ctx context.Context, name string) (*certificatesv1.ClusterTrustBundle, error)
	ClusterTrustBundles(ctx context.Context) ([]certificatesv1.ClusterTrustBundle, error)
}

// bundleFiles makes the file of the certificates of a trust bundle, or of all that have a signer and labels. An
// optional one that is missing is an empty file.
func (m *Manager) bundleFiles(
	ctx context.Context, pod *v1.Pod, ask *v1.ClusterTrustBundleProjection, d defaults,
) ([]file, error) {
	if err := checkPath(ask.Path); err != nil {
		return nil, err
	}
	if m.opts.Bundles == nil {
		return nil, errors.New("clusterTrustBundle: this node has no access to trust bundles")
	}
	bundles, err := m.bundles(ctx, ask)
	if err != nil {
		return nil, err
	}
	f, err := d.file(path.Clean(ask.Path), anchors(bundles), nil, ask.User)
	if err != nil {
		return nil, err
	}
	f.private(pod, cmp.Or(ask.User, d.user))
	return []file{f}, nil
}

// bundles finds the bundles that a source means.
func (m *Manager) bundles(
	ctx context.Context, ask *v1.ClusterTrustBundleProjection,
) ([]certificatesv1.ClusterTrustBundle, error) {
	switch {
	case ask.Name != nil:
		b, err := m.opts.Bundles.ClusterTrustBundle(ctx, *ask.Name)
		if apierrors.IsNotFound(err) && isTrue(ask.Optional) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("while getting ClusterTrustBundle: %w",
				notFound(err, "clustertrustbundle", *ask.Name))
		}
		return []certificatesv1.ClusterTrustBundle{*b}, nil
	case ask.SignerName == nil:
		return nil, errors.New("ClusterTrustBundle projection requires either name or signerName to be set")
	}
	selector, err := metav1.LabelSelectorAsSelector(ask.LabelSelector) // none selects nothing, an empty one everything
	if err != nil {
		return nil, fmt.Errorf("while parsing label selector: %w", err)
	}
	all, err := m.opts.Bundles.ClusterTrustBundles(ctx)
	if err != nil {
		return nil, fmt.Errorf("while listing ClusterTrustBundles of signer %s: %w", *ask.SignerName, err)
	}
	all = slices.DeleteFunc(slices.Clone(all), func(b certificatesv1.ClusterTrustBundle) bool {
		return b.Spec.SignerName != *ask.SignerName || !selector.Matches(labels.Set(b.Labels))
	})
	if len(all) == 0 && !isTrue(ask.Optional) {
		return nil, errors.New("combination of signerName and labelSelector matched zero ClusterTrustBundles")
	}
	return all, nil
}

// anchors brings the certificates of bundles into one file: each once, without what is between them, in an order that
// does not change.
func anchors(bundles []certificatesv1.ClusterTrustBundle) []byte {
	blocks := map[string]bool{}
	for _, b := range bundles {
		for block, rest := pem.Decode([]byte(b.Spec.TrustBundle)); block != nil; block, rest = pem.Decode(rest) {
			blocks[string(block.Bytes)] = true
		}
	}
	var out bytes.Buffer
	for _, der := range slices.Sorted(maps.Keys(blocks)) {
		out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(der)}))
	}
	return out.Bytes()
}
