package v1alpha2

import (
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/pkg/apis/strict/stricttest"
)

func TestEveryKeyIsLiveOrWarnedOf(t *testing.T) {
	stricttest.EveryKeyIsLiveOrWarnedOf(t, schema(), 150)
}

// TestTablesNameKeys: what the tables name are keys.
func TestTablesNameKeys(t *testing.T) {
	known := stricttest.TablesNameKeys(t, schema())
	for _, key := range formerEdged() {
		if known["modules.edged."+key] {
			t.Errorf("former key modules.edged.%s is a key, want none", key)
		}
	}
}

// TestSpellingsOfADefault: a default in other words is no change.
func TestSpellingsOfADefault(t *testing.T) {
	_, warnings, err := Parse([]byte(head + `
modules:
  edged:
    minimumGCAge: 0h
    nodeLabels: {}
    tailoredKubeletConfig:
      imageMinimumGCAge: 120s
      logging: {flushFrequency: 5s, format: text}
      enableSystemLogQuery: false
      reservedMemory: []
      evictionHard: {nodefs.inodesFree: 5%, nodefs.available: 10%, memory.available: 100Mi, imagefs.inodesFree: 5%, imagefs.available: 15%}
  deviceTwin:
    enable: false
`))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string(nil), warnings); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestKeysOfKubeEdge: the keys that KubeEdge v1.23 prints are all known, none is lost in an update of
// k8s.io/kubelet.
func TestKeysOfKubeEdge(t *testing.T) {
	data, err := os.ReadFile("testdata/kubeedge-v1.23.yaml")
	if err != nil {
		t.Fatal(err)
	}
	root := map[string]any{}
	if err := yaml.Unmarshal(data, &root); err != nil {
		t.Fatal(err)
	}
	count := 0
	var walk func(any)
	walk = func(v any) {
		if m, ok := v.(map[string]any); ok {
			for _, inner := range m {
				count++
				walk(inner)
			}
		}
	}
	walk(root)
	if count < 170 {
		t.Errorf("the file has %d keys, want 170 or more", count)
	}
	var problems Problems
	if _, _, err := schema().Parse(data); errors.As(err, &problems) {
		t.Errorf("problems %v, want none", problems)
	}
}
