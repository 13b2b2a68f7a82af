package volume

import (
	"context"
	"encoding/pem"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

type bundleList struct {
	items  []certificatesv1.ClusterTrustBundle
	broken error
}

func (b *bundleList) ClusterTrustBundle(_ context.Context, name string) (*certificatesv1.ClusterTrustBundle, error) {
	for i := range b.items {
		if b.items[i].Name == name {
			return &b.items[i], b.broken
		}
	}
	return nil, apierrors.NewNotFound(v1.Resource("clustertrustbundles"), name)
}

func (b *bundleList) ClusterTrustBundles(context.Context) ([]certificatesv1.ClusterTrustBundle, error) {
	return b.items, b.broken
}

func certificate(der string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(der)}))
}

func trustBundle(name, signer, content string, labels map[string]string) certificatesv1.ClusterTrustBundle {
	return certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: content}}
}

func TestClusterTrustBundle(t *testing.T) {
	all := &bundleList{items: []certificatesv1.ClusterTrustBundle{
		trustBundle("plain", "", "words before\n"+certificate("b")+"between\n"+certificate("a")+certificate("b"), nil),
		trustBundle("s:live", "x.io/s", certificate("1")+certificate("2"), map[string]string{"live": "yes"}),
		trustBundle("s:next", "x.io/s", certificate("2")+certificate("3"), nil),
		trustBundle("o:live", "x.io/o", certificate("4"), map[string]string{"live": "yes"}),
	}}
	live := &metav1.LabelSelector{MatchLabels: map[string]string{"live": "yes"}}
	for _, tc := range []struct {
		name   string
		ask    v1.ClusterTrustBundleProjection
		broken error
		want   string
		err    string
	}{
		{"by name", v1.ClusterTrustBundleProjection{Name: ptr.To("plain")}, nil, certificate("a") + certificate("b"),
			""},
		{
			"missing", v1.ClusterTrustBundleProjection{Name: ptr.To("gone")}, nil, "",
			`while getting ClusterTrustBundle: clustertrustbundle "gone" not found`,
		},
		{"missing, optional", v1.ClusterTrustBundleProjection{Name: ptr.To("gone"), Optional: ptr.To(true)}, nil, "",
			""},
		{
			"unknown, optional", v1.ClusterTrustBundleProjection{Name: ptr.To("plain"), Optional: ptr.To(true)},
			errors.New("no link"), "", "no link",
		},
		{
			"of a signer", v1.ClusterTrustBundleProjection{
				SignerName: ptr.To("x.io/s"), LabelSelector: &metav1.LabelSelector{},
			}, nil,
			certificate("1") + certificate("2") + certificate("3"), "",
		},
		{"of a signer and labels", v1.ClusterTrustBundleProjection{SignerName: ptr.To("x.io/s"), LabelSelector: live},
			nil, certificate("1") + certificate("2"), ""},
		{"no labels select nothing", v1.ClusterTrustBundleProjection{SignerName: ptr.To("x.io/s")}, nil, "",
			"combination of signerName and labelSelector matched zero ClusterTrustBundles"},
		{
			"nothing selected, optional", v1.ClusterTrustBundleProjection{
				SignerName: ptr.To("x.io/s"), Optional: ptr.To(true),
			}, nil, "", "",
		},
		{
			"neither", v1.ClusterTrustBundleProjection{}, nil, "",
			"ClusterTrustBundle projection requires either name or signerName to be set",
		},
		{
			"bad labels", v1.ClusterTrustBundleProjection{
				SignerName: ptr.To("s"), LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"/": ""}},
			}, nil, "", "while parsing label selector",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, _ := start(t)
			all.broken, m.opts.Bundles = tc.broken, all
			tc.ask.Path = "ca/roots.pem"
			pod := podWith(vol("v", v1.VolumeSource{
				Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{{ClusterTrustBundle: &tc.ask}}},
			}))
			vols, err := m.Setup(t.Context(), pod)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("got %v, want %s", err, tc.err)
				}
				return
			}
			must(t, err)
			if diff := cmp.Diff(map[string]string{"ca/roots.pem": "0644 " + tc.want},
				content(t, vols["v"].Path)); diff != "" {
				t.Errorf("files mismatch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTrustBundleIsOfThePodsUser(t *testing.T) {
	m, _ := start(t)
	m.opts.Bundles = &bundleList{
		items: []certificatesv1.ClusterTrustBundle{trustBundle("b", "", certificate("a"), nil)},
	}
	pod := podWith(vol("v", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
		{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Name: ptr.To("b"), Path: "ca"}}}}}))
	pod.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: ptr.To[int64](12)}
	if got := content(t, setup(t, m, pod)["v"].Path)["ca"]; !strings.HasPrefix(got, "0600 ") {
		t.Errorf("the bundle is %q, want mode 0600", got)
	}
}

func FuzzAnchors(f *testing.F) {
	f.Add(certificate("a")+"x", certificate("b"))
	f.Add(strings.Repeat(certificate("a"), 100), strings.Repeat("-----BEGIN A-----\n-----END A-----\n", 1_000))
	f.Add(strings.Repeat("-----BEGIN CERTIFICATE-----\n", 2_000), "-----BEGIN A-----\n"+strings.Repeat("a:b\n", 8_000)+
		"\n-----END A-----\n")
	f.Fuzz(func(t *testing.T, a, b string) {
		bundles := []certificatesv1.ClusterTrustBundle{trustBundle("a", "", a, nil), trustBundle("b", "", b, nil)}
		var out []byte
		// Certificates are decoded from base64 and encoded again, and kept by what is in them.
		membound.Check(t, membound.Linear(len(a)+len(b), 64), func() { out = anchors(bundles) })
		again := anchors([]certificatesv1.ClusterTrustBundle{trustBundle("c", "", string(out), nil)})
		if string(out) != string(again) {
			t.Errorf("anchors of normalized anchors = %q, want %q", again, out)
		}
	})
}
