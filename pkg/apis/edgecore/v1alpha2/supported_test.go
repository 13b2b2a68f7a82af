package v1alpha2

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/pkg/apis/strict"
	"github.com/edgecore-io/edgecore/pkg/apis/strict/stricttest"
)

func TestEveryKeyIsLiveOrWarnedOf(t *testing.T) {
	stricttest.EveryKeyIsLiveOrWarnedOf(t, schema(), 150)
}

// TestTablesNameKeys: what the tables name are keys.
func TestTablesNameKeys(t *testing.T) {
	known := stricttest.TablesNameKeys(t, schema())
	for _, key := range deprecatedEdged() {
		if known["modules.edged."+key] {
			t.Errorf("former key modules.edged.%s is a key, want none", key)
		}
	}
}

func TestRows(t *testing.T) { stricttest.RowsAreKeys(t, schema(), rows()) }

// TestDocumentedDefaults: docs/configuration.md says what the defaults are.
func TestDocumentedDefaults(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "| key | default |")
	section, _, _ = strings.Cut(section, "\n\n")
	data, err := yaml.Marshal(Default())
	if err != nil {
		t.Fatal(err)
	}
	tree := map[string]any{}
	if err := yaml.Unmarshal(data, &tree); err != nil {
		t.Fatal(err)
	}
	quoted := regexp.MustCompile("`([^`]+)`")
	count := 0
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		defaults := quoted.FindAllStringSubmatch(cells[2], -1) // a default of the host is in words
		for i, name := range quoted.FindAllStringSubmatch(cells[1], len(defaults)) {
			path := name[1]
			if rest, ok := strings.CutPrefix(path, "..."); ok {
				path = "modules.edged.tailoredKubeletConfig." + strings.TrimPrefix(rest, "tailoredKubeletConfig.")
			}
			if got := fmt.Sprint(strict.At(tree, strict.Split(path)...)); got != defaults[i][1] {
				t.Errorf("docs/configuration.md: the default of %s is %s, want %s", path, defaults[i][1], got)
			}
			count++
		}
	}
	if count < 9 {
		t.Errorf("%d defaults found in docs/configuration.md, want 9 or more", count)
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

// TestNotActedOn: settings that would keep a kubelet from starting, or make it run programs of a cloud provider, are
// warned of.
func TestNotActedOn(t *testing.T) {
	_, warnings, err := Parse([]byte(head + `
modules:
  edged:
    imageCredentialProviderConfigFile: /etc/providers.yaml
    imageCredentialProviderBinDir: /opt/providers
    tailoredKubeletConfig:
      failSwapOn: true
      memoryThrottlingFactor: 0.9
      memoryReservationPolicy: TieredReservation
`))
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range warnings {
		_, warnings[i], _ = strings.Cut(w, ": ") // the line
	}
	slices.Sort(warnings)
	want := []string{
		"modules.edged.imageCredentialProviderBinDir: " + strict.NotActedOn,
		"modules.edged.imageCredentialProviderConfigFile: " + strict.NotActedOn,
		"modules.edged.tailoredKubeletConfig.failSwapOn: " + strict.NotActedOn,
		"modules.edged.tailoredKubeletConfig.memoryReservationPolicy: " + strict.NotActedOn,
		"modules.edged.tailoredKubeletConfig.memoryThrottlingFactor: " + strict.NotActedOn,
	}
	if diff := cmp.Diff(want, warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
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
