package v1alpha1

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

func TestNames(t *testing.T) {
	for name, want := range map[string]struct {
		node string
		uid  types.UID
		ok   bool
	}{
		"n1.52a53aab-3e6d":          {"n1", "52a53aab-3e6d", true},
		"edge.site.example.52a53aa": {"edge.site.example", "52a53aa", true},
		"nodot":                     {},
		".uid":                      {},
		"node.":                     {},
		"":                          {},
	} {
		node, uid, ok := SplitName(name)
		if node != want.node || uid != want.uid || ok != want.ok {
			t.Errorf("SplitName(%q) = %q, %q, %v; want %q, %q, %v", name, node, uid, ok, want.node, want.uid, want.ok)
		}
		if ok && Name(node, uid) != name {
			t.Errorf("Name(%q, %q) = %q, want %q", node, uid, Name(node, uid), name)
		}
	}
}

// TestWireForm: the names of the fields are KubeEdge's.
func TestWireForm(t *testing.T) {
	o := ObjectSync{
		TypeMeta:   metav1.TypeMeta{APIVersion: GroupVersion.String(), Kind: KindObjectSync},
		ObjectMeta: metav1.ObjectMeta{Name: "n1.u", Namespace: "default"},
		Spec:       ObjectSyncSpec{ObjectAPIVersion: "v1", ObjectKind: "Pod", ObjectName: "web"},
		Status:     ObjectSyncStatus{ObjectResourceVersion: "900"},
	}
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"kind":"ObjectSync","apiVersion":"reliablesyncs.kubeedge.io/v1alpha1","metadata":{"name":"n1.u","namespace":"default"},` +
		`"spec":{"objectAPIVersion":"v1","objectKind":"Pod","objectName":"web"},"status":{"objectResourceVersion":"900"}}`
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestDefinitions: the CRDs that are shipped define these types, with all their fields.
func TestDefinitions(t *testing.T) {
	for file, want := range map[string]struct{ plural, kind, scope string }{
		"objectsyncs.yaml":        {ObjectSyncs.Resource, KindObjectSync, "Namespaced"},
		"clusterobjectsyncs.yaml": {ClusterObjectSyncs.Resource, KindClusterObjectSync, "Cluster"},
	} {
		text, err := os.ReadFile(filepath.Join("../../../../deploy/cloudcore/crds", file))
		if err != nil {
			t.Fatal(err)
		}
		type schema struct {
			Type       string
			Properties map[string]schema
		}
		var crd struct {
			Metadata struct{ Name string }
			Spec     struct {
				Group, Scope string
				Names        struct{ Kind, Plural, ListKind, Singular string }
				Versions     []struct {
					Name            string
					Served, Storage bool
					Subresources    map[string]any
					Schema          struct{ OpenAPIV3Schema schema }
				}
			}
		}
		if err := yaml.Unmarshal(text, &crd); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if crd.Metadata.Name != want.plural+"."+Group || crd.Spec.Group != Group || crd.Spec.Scope != want.scope ||
			crd.Spec.Names.Kind != want.kind || crd.Spec.Names.Plural != want.plural {
			t.Errorf("%s: %+v, want %+v in group %s", file, crd, want, Group)
		}
		if len(crd.Spec.Versions) != 1 {
			t.Fatalf("%s: %d versions, want 1", file, len(crd.Spec.Versions))
		}
		v := crd.Spec.Versions[0]
		if _, ok := v.Subresources["status"]; !ok || v.Name != Version || !v.Served || !v.Storage {
			t.Errorf("%s: version %+v, want %s served and stored, with a status", file, v, Version)
		}
		full, err := json.Marshal(map[string]any{
			"spec": ObjectSyncSpec{"a", "b", "c"}, "status": ObjectSyncStatus{"a", "b"},
		})
		if err != nil {
			t.Fatal(err)
		}
		var fields map[string]map[string]string
		if err := json.Unmarshal(full, &fields); err != nil {
			t.Fatal(err)
		}
		for part, names := range fields {
			for name := range names {
				if got := v.Schema.OpenAPIV3Schema.Properties[part].Properties[name].Type; got != "string" {
					t.Errorf("%s: %s.%s is of type %q, want string", file, part, name, got)
				}
			}
		}
	}
}
