package adopt

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/pkg/apis/cloudcore/v1alpha1"
)

// TestMerge: each key of KubeEdge's file that edgecore's cloudcore acts on replaces that of the manifest. The others of
// its section stay, and so do paths in the pod, and values for which KubeEdge's file has an empty text.
func TestMerge(t *testing.T) {
	const head = "apiVersion: " + v1alpha1.APIVersion + "\nkind: " + v1alpha1.Kind + "\n"
	theirs, err := parseConfig(head + `
commonConfig: {monitorServer: {bindAddress: "127.0.0.1:9091"}}
kubeAPIConfig: {kubeConfig: /root/.kube/config, master: "", qps: 7}
modules:
  cloudHub:
    tlsCAFile: /etc/kubeedge/theirs.crt
    nodeLimit: 300
    websocket: {port: 10100}
  edgeController: {buffer: {queryNode: 9}}
`)
	if err != nil {
		t.Fatal(err)
	}
	merged, err := theirs.merge(head+`
commonConfig: {monitorServer: {bindAddress: "0.0.0.0:9091"}}
modules:
  cloudHub:
    nodeLimit: 1000
    websocket: {address: 192.0.2.7}
`, []string{"192.0.2.1"}, []string{"cloud.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.Kind,
		"commonConfig":  map[string]any{"monitorServer": map[string]any{"bindAddress": "0.0.0.0:9091"}},
		"kubeAPIConfig": map[string]any{"qps": 7.0},
		"modules": map[string]any{"cloudHub": map[string]any{
			"advertiseAddress": []any{"192.0.2.1"}, "dnsNames": []any{"cloud.example.com"}, "nodeLimit": 300.0,
			"websocket": map[string]any{"address": "192.0.2.7", "port": 10100.0},
		}},
	}
	got := map[string]any{}
	if err := yaml.Unmarshal([]byte(merged), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("merged file (-want +got):\n%s", diff)
	}
}
