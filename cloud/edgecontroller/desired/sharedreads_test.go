package desired

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

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
			if err := w.caches.Put(secret); err != nil {
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
