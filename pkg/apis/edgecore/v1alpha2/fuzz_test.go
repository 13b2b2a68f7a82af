package v1alpha2

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// FuzzParse: no input brings Parse down; what it takes reads back the same once printed, and loads again.
func FuzzParse(f *testing.F) {
	same := func(want, got *EdgeCore) string { // as printed: a quantity may be written in several ways
		texts := [2][]byte{}
		for i, cfg := range []*EdgeCore{want, got} {
			var err error
			if texts[i], err = yaml.Marshal(cfg); err != nil {
				return err.Error()
			}
		}
		return cmp.Diff(string(texts[0]), string(texts[1]))
	}
	kind().Fuzz(f, (*EdgeCore).Validate, same,
		"", "a", "- - - a", "{", "a: &x [*x]", "kind: EdgeCore", head+"modules: {edged: {nodeLabels: {a: 1e3}}}",
		head+"database: {dataSource: /a, dataSource: /b}",
		head+"modules: {edged: {remoteRuntimeEndpoint: /a, tailoredKubeletConfig: []}}", head+"---\n",
		head+"modules: {edged: {minimumGCAge: 9999999h}}",
	)
}
