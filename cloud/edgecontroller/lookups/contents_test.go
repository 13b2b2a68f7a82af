package lookups

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// TestContents: what is kept is bounded in bytes, the longest unused goes first, and an older version replaces none.
func TestContents(t *testing.T) {
	c := NewContents(nil, nil)
	object := func(name string, uid types.UID, version string, bytes int) *cloudhub.Object {
		return &cloudhub.Object{Ref: cloudhub.Ref{
			Key: resource.Key{Namespace: "ns", Type: resource.TypeSecret, Name: name}, UID: uid,
			ResourceVersion: version,
		}, JSON: []byte(strings.Repeat("x", bytes))}
	}
	has := func(name string, uid types.UID, version string) bool {
		now := &metav1.PartialObjectMetadata{ObjectMeta: fakes.ObjectMeta("ns", name, version)}
		now.UID = uid
		return c.get(fakes.Key("ns/secret/"+name), now) != nil
	}
	c.Put(object("a", "u", "9", 1))
	c.Put(object("a", "u", "10", 1))
	c.Put(object("a", "u", "9", 1))
	for _, tc := range []struct {
		uid     types.UID
		version string
		want    bool
	}{{"u", "9", true}, {"u", "10", true}, {"u", "11", false}, {"v", "10", false}, {"u", "x", false}} {
		if got := has("a", tc.uid, tc.version); got != tc.want {
			t.Errorf("get of UID %s, version %s: %v, want %v", tc.uid, tc.version, got, tc.want)
		}
	}
	c.Expire(fakes.Key("ns/secret/a"), "10")
	if !has("a", "u", "10") {
		t.Error("the version that the metadata has is not kept, want it to be")
	}
	c.Expire(fakes.Key("ns/secret/a"), "7")
	if has("a", "u", "7") {
		t.Error("a version of before a restore of etcd is kept, want it dropped")
	}
	c.Put(object("a", "v", "1", 1)) // created again
	if !has("a", "v", "1") {
		t.Error("the object that was created again is not kept, want it to be")
	}
	const each = 1 << 20
	for i := range 2 * contentBytes / each {
		c.Put(object(fmt.Sprint("large-", i), "u", "1", each))
		if !has("a", "v", "1") { // which is a use
			t.Fatalf("the object in use is not kept after %d others, want it to be", i+1)
		}
	}
	if c.bytes > contentBytes || c.bytes < contentBytes/2 || len(c.entries) != c.used.Len() {
		t.Errorf("%d bytes in %d entries, %d in order; want up to %d bytes", c.bytes, len(c.entries), c.used.Len(),
			contentBytes)
	}
	if has("large-0", "u", "1") {
		t.Error("the longest unused is kept, want it dropped")
	}
	c.Put(object("huge", "u", "1", contentMax+1))
	if has("huge", "u", "1") {
		t.Errorf("an object over %d bytes is kept, want it not to be", contentMax)
	}
	c.Forget(fakes.Key("ns/secret/a"))
	if has("a", "v", "1") {
		t.Error("an object that is gone is kept, want it dropped")
	}
}
