package v1alpha1

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzParse: no input brings Parse down; what it takes is valid, reads back the same once printed, and loads again.
func FuzzParse(f *testing.F) {
	same := func(want, got *CloudCore) string { return cmp.Diff(want, got) }
	kind().Fuzz(f, (*CloudCore).Validate, same,
		"", "{", "kind: CloudCore", head+"modules: {cloudHub: {nodeLimit: 2147483647}}",
		head+"modules: {cloudHub: {nodeLimit: -1, quic: {enable: true}}}",
		head+"leaderelection: {a: b}\nmodules: {edgeController: {buffer: []}}",
		head+"modules: {cloudHub: {authorization: {modes: [{}, {node: {enable: false}}]}}}",
		head+"kubeAPIConfig: {qps: 1, master: 'https://a:b@c'}", head+"---\n",
	)
}
