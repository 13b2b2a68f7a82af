package outbox

import (
	"slices"
	"testing"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

func TestReportKey(t *testing.T) {
	for _, c := range []struct{ operation, res, content, key, uid string }{
		{"patch", "default/podpatch/one", patch("u1", "Running"), "patch:u1 default/podpatch/one", "u1"},
		{"delete", "default/pod/one", end("u1"), "delete:u1 default/pod/one", "u1"},
		{"delete", "default/pod/one", `{}`, "delete default/pod/one", ""},
		{"patch", "default/podpatch/one", patch("a b:c/d", "Running"), "patch:a+b%3Ac%2Fd default/podpatch/one",
			"a b:c/d"},
		{"insert", "default/event/e", `{"metadata":{"uid":"u1"}}`, "insert default/event/e", ""},
	} {
		msg := model.New(model.ModuleEdged, model.GroupMeta, c.operation, c.res, []byte(c.content))
		object, err := resource.Parse(c.res)
		if err != nil {
			t.Fatal(err)
		}
		got := Read(object, msg).key()
		operation, uid, key, err := parseKey(got)
		if got != c.key || err != nil || operation != c.operation || uid != c.uid || key.String() != c.res {
			t.Errorf("key of %s %s: %q, read as %q, %q, %q, %v; want %q", c.operation, c.content, got, operation, uid,
				key, err, c.key)
		}
		// An older version takes what is behind the first space for the resource.
		if _, err := resource.Parse(got[slices.Index([]byte(got), ' ')+1:]); err != nil {
			t.Errorf("key %q: %v", got, err)
		}
	}
}
