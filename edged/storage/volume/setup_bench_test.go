package volume

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// BenchmarkSetupAgain measures Setup of a pod whose volume needs no change. An idle node does that for each pod every
// minute. The volume is the one that pods have for their service account.
func BenchmarkSetupAgain(b *testing.B) {
	root := b.TempDir()
	b.Cleanup(func() {
		if err := unmountAll(root); err != nil {
			b.Error(err)
		}
	})
	o := &objects{configMaps: map[string]*v1.ConfigMap{"shop/kube-root-ca.crt": {
		ObjectMeta: metav1.ObjectMeta{Name: "kube-root-ca.crt", Namespace: "shop"},
		Data:       map[string]string{"ca.crt": strings.Repeat("certificate\n", 100)},
	}}}
	m := New(Options{Root: root, Objects: o, Tokens: o, Fields: fields{}})
	pod := podWith(vol("kube-api-access-x7q2p", v1.VolumeSource{
		Projected: &v1.ProjectedVolumeSource{DefaultMode: ptr.To[int32](0o644), Sources: []v1.VolumeProjection{
			{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token"}},
			{ConfigMap: &v1.ConfigMapProjection{
				LocalObjectReference: v1.LocalObjectReference{Name: "kube-root-ca.crt"},
				Items:                []v1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{
				{Path: "name", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}},
			}}},
		}},
	}))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.Setup(b.Context(), pod); err != nil {
			b.Fatal(err)
		}
	}
}
