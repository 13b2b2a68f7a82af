package edgecontroller

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// TestContents: what is kept is bounded in bytes, the longest unused goes first, and an older version replaces none.
func TestContents(t *testing.T) {
	c := newContents(nil, nil)
	object := func(name string, uid types.UID, version string, bytes int) *cloudhub.Object {
		return &cloudhub.Object{Ref: cloudhub.Ref{
			Key: resource.Key{Namespace: "ns", Type: resource.TypeSecret, Name: name}, UID: uid,
			ResourceVersion: version,
		}, JSON: []byte(strings.Repeat("x", bytes))}
	}
	has := func(name string, uid types.UID, version string) bool {
		now := metaOf(&v1.Secret{ObjectMeta: fakes.ObjectMeta("ns", name, version)})
		now.UID = uid
		return c.get(fakes.Key("ns/secret/"+name), now) != nil
	}
	c.put(object("a", "u", "9", 1))
	c.put(object("a", "u", "10", 1))
	c.put(object("a", "u", "9", 1))
	for _, tc := range []struct {
		uid     types.UID
		version string
		want    bool
	}{{"u", "9", true}, {"u", "10", true}, {"u", "11", false}, {"v", "10", false}, {"u", "x", false}} {
		if got := has("a", tc.uid, tc.version); got != tc.want {
			t.Errorf("get of UID %s, version %s: %v, want %v", tc.uid, tc.version, got, tc.want)
		}
	}
	c.expire(fakes.Key("ns/secret/a"), "10")
	if !has("a", "u", "10") {
		t.Error("the version that the metadata has is not kept, want it to be")
	}
	c.expire(fakes.Key("ns/secret/a"), "7")
	if has("a", "u", "7") {
		t.Error("a version of before a restore of etcd is kept, want it dropped")
	}
	c.put(object("a", "v", "1", 1)) // created again
	if !has("a", "v", "1") {
		t.Error("the object that was created again is not kept, want it to be")
	}
	const each = 1 << 20
	for i := range 2 * contentBytes / each {
		c.put(object(fmt.Sprint("large-", i), "u", "1", each))
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
	c.put(object("huge", "u", "1", contentMax+1))
	if has("huge", "u", "1") {
		t.Errorf("an object over %d bytes is kept, want it not to be", contentMax)
	}
	c.forget(fakes.Key("ns/secret/a"))
	if has("a", "v", "1") {
		t.Error("an object that is gone is kept, want it dropped")
	}
}

// TestSharedReads: many nodes that need an object at the same time cost one request, and a new version one more.
func TestSharedReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		const nodes = 50
		for i := range nodes {
			w.add(fakes.Pod(fmt.Sprint("e", i), "ns", fmt.Sprint("pod-", i)))
		}
		shared := fakes.Key("ns/secret/shared")
		for _, version := range []string{"1", "2"} {
			secret := &v1.Secret{ObjectMeta: fakes.ObjectMeta("ns", "shared", version)}
			if err := w.caches.secrets.GetIndexer().Add(metaOf(secret)); err != nil {
				t.Fatal(err)
			}
			release := make(chan struct{})
			w.api.Answer(func(fakes.Call) (int, any) {
				<-release
				return 200, secret
			})
			var all sync.WaitGroup
			for i := range nodes {
				all.Go(func() {
					o, err := w.Object(fmt.Sprint("e", i), shared)
					if err != nil || o == nil || o.ResourceVersion != version {
						t.Errorf("Object for node e%d = %+v, %v; want version %s", i, o, err, version)
					}
				})
			}
			synctest.Wait()
			close(release)
			all.Wait()
			if _, err := w.Object("e0", shared); err != nil { // kept by now
				t.Error(err)
			}
			if calls := w.api.Seen(); len(calls) != 1 {
				t.Errorf("version %s: the API server saw %q, want one request", version, calls)
			}
		}
	})
}
