package objectsync

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// FuzzTrim: whatever is in a sync object, it becomes a record, and its key and node can be told.
func FuzzTrim(f *testing.F) {
	f.Add([]byte(
		`{"metadata":{"name":"n1.u","namespace":"default"},"spec":{"objectKind":"Pod","objectName":"web"},"status":{"objectResourceVersion":"5"}}`))
	f.Add([]byte(`{"metadata":"x","spec":[],"status":7}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var o map[string]any
		if json.Unmarshal(text, &o) != nil || o == nil {
			return
		}
		got, err := trim(&unstructured.Unstructured{Object: o})
		if err != nil {
			t.Fatal(err)
		}
		r := got.(*record)
		if node := r.node(); node != "" && !strings.HasPrefix(r.name, node+".") {
			t.Errorf("node of %q = %q, want the prefix of the name or none", r.name, node)
		}
		if r.key().Namespace == "" {
			t.Errorf("key of %+v = %v, want one with a namespace", r, r.key())
		}
		needs(r, &intent{rv: "1"})
	})
}
