package volume

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/apiendpoint"
)

// TestCAOfTheEndpoint: a pod that uses the API on the device gets its CA beside the cluster's, where it has its token;
// others, and other volumes, have what the ConfigMap has.
func TestCAOfTheEndpoint(t *testing.T) {
	m, o := start(t)
	m.opts.APIEndpoint = &apiendpoint.Endpoint{Access: apiendpoint.All, CA: func() []byte { return []byte("device\n") }}
	for _, name := range []string{apiendpoint.RootCA, "other"} {
		o.configMaps["shop/"+name] = &v1.ConfigMap{Data: map[string]string{"ca.crt": "cluster\n", "more": "x"}}
	}
	configMap := func(name string, items ...v1.KeyToPath) v1.VolumeProjection {
		return v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{
			LocalObjectReference: v1.LocalObjectReference{Name: name}, Items: items,
		}}
	}
	token := func(audience string) v1.VolumeProjection {
		return v1.VolumeProjection{ServiceAccountToken: &v1.ServiceAccountTokenProjection{
			Path: "token", Audience: audience,
		}}
	}
	const joined = "0644 cluster\ndevice\n"
	for name, tc := range map[string]struct {
		annotation string
		sources    []v1.VolumeProjection
		want       map[string]string
	}{
		"default": {"", []v1.VolumeProjection{
			token(""), configMap(apiendpoint.RootCA, v1.KeyToPath{Key: "ca.crt", Path: "./ca.pem"}),
		}, map[string]string{"ca.pem": joined}},
		"all keys": {"", []v1.VolumeProjection{token(""), configMap(apiendpoint.RootCA)},
			map[string]string{"ca.crt": joined, "more": "0644 x"}},
		"another key at its path": {"", []v1.VolumeProjection{
			token(""), configMap(apiendpoint.RootCA, v1.KeyToPath{Key: "more", Path: "ca.crt"}),
		}, map[string]string{"ca.crt": "0644 x"}},
		"another ConfigMap": {"", []v1.VolumeProjection{token(""), configMap("other")},
			map[string]string{"ca.crt": "0644 cluster\n", "more": "0644 x"}},
		"the pod does not use it": {"false", []v1.VolumeProjection{token(""), configMap(apiendpoint.RootCA)},
			map[string]string{"ca.crt": "0644 cluster\n", "more": "0644 x"}},
		"token for another": {"", []v1.VolumeProjection{token("vault"), configMap(apiendpoint.RootCA)},
			map[string]string{"ca.crt": "0644 cluster\n", "more": "0644 x"}},
	} {
		pod := podWith(vol("v", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: tc.sources}}))
		pod.Annotations = map[string]string{apiendpoint.Annotation: tc.annotation}
		got := content(t, setup(t, m, pod)["v"].Path)
		delete(got, "token")
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: files (-want +got):\n%s", name, diff)
		}
	}
	if ca := o.configMaps["shop/"+apiendpoint.RootCA].Data["ca.crt"]; ca != "cluster\n" {
		t.Errorf("the ConfigMap has %q, want it unchanged", ca)
	}
}
