package v1alpha1

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// FuzzParse: no input brings Parse down; what it takes is valid, reads back the same once printed, and loads again.
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
		"", "{", "kind: CloudCore", head + "modules: {cloudHub: {nodeLimit: 2147483647}}",
		head + "modules: {cloudHub: {nodeLimit: -1, quic: {enable: true}}}",
		head + "leaderelection: {a: b}\nmodules: {edgeController: {buffer: []}}",
		head + "modules: {cloudHub: {authorization: {modes: [{}, {node: {enable: false}}]}}}",
		head + "kubeAPIConfig: {qps: 1, master: 'https://a:b@c'}", head + "---\n",
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
		if diff := cmp.Diff(cfg, again); diff != "" {
			t.Fatalf("configuration read back from what was printed (-want +got):\n%s", diff)
		}
	})
}
