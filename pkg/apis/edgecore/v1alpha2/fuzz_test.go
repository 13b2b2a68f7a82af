package v1alpha2

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// FuzzParse: no input brings Parse down; what it takes reads back the same once printed, and loads again.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("Glob = %v, %v; want files", files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add(Minimal())
	for _, text := range []string{
		"", "a", "- - - a", "{", "a: &x [*x]", "kind: EdgeCore", head + "modules: {edged: {nodeLabels: {a: 1e3}}}",
		head + "database: {dataSource: /a, dataSource: /b}",
		head + "modules: {edged: {remoteRuntimeEndpoint: /a, tailoredKubeletConfig: []}}", head + "---\n",
		head + "modules: {edged: {minimumGCAge: 9999999h}}",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, warnings, err := Parse(data)
		if err != nil {
			if err.Error() == "" || cfg != nil || warnings != nil {
				t.Fatalf("Parse = %v, %v, %q; want an error with a text, and nothing else", cfg, warnings, err)
			}
			return
		}
		if err := cfg.Validate(); err != nil {
			t.Fatalf("taken, and not valid: %v", err)
		}
		printed, err := yaml.Marshal(cfg)
		if err != nil {
			t.Fatal(err)
		}
		again, _, err := Parse(printed)
		if err != nil {
			t.Fatalf("Parse of what was printed = %v, want no error\n%s", err, printed)
		}
		second, err := yaml.Marshal(again)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(printed), string(second)); diff != "" {
			t.Fatalf("configuration printed again (-want +got):\n%s", diff)
		}
	})
}
