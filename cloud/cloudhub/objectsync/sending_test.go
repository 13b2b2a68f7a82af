package objectsync

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/edgecore-io/edgecore/pkg/apis/reliablesyncs/v1alpha1"
)

// TestSending returns when the API server has the sync object, and only then: whether it is to be made, is being
// deleted or is there already.
func TestSending(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		defer b.stop()
		web := ref("default/pod/web", "Pod", "u-1", "0")
		exists := func() bool {
			objects := b.client.Resource(v1alpha1.ObjectSyncs).Namespace("default")
			_, err := objects.Get(t.Context(), "n1.u-1", metav1.GetOptions{})
			return err == nil
		}
		sending := func(timeout time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			return b.store.Sending(ctx, "n1", web)
		}
		for _, before := range []string{"nothing", "the same", "a deletion under way", "a deletion"} {
			switch before {
			case "a deletion under way":
				b.store.Deleted("n1", web)
			case "a deletion":
				b.store.Deleted("n1", web)
				synctest.Wait()
			}
			if err := sending(time.Hour); err != nil || !exists() {
				t.Errorf("after %s: Sending() = %v, the sync object exists: %v; want no error, and that it does",
					before, err, exists())
			}
		}
		b.store.Deleted("n1", web)
		b.want()
		failing := true
		b.client.PrependReactor("create", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			return failing, nil, errors.New("the API server is away")
		})
		if err := sending(time.Minute); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Sending() = %v while no sync object can be made, want that the time is over", err)
		}
		synctest.Wait()
		failing = false
		if err := sending(10 * time.Minute); err != nil || !exists() {
			t.Errorf("Sending() = %v, the sync object exists: %v; want no error, and that it does", err, exists())
		}
		b.want("ObjectSync default/n1.u-1 v1 Pod web 0")
		b.store.mu.Lock()
		defer b.store.mu.Unlock()
		if n := len(b.store.making); n != 0 {
			t.Errorf("%d sync objects are waited for at the end, want none", n)
		}
	})
}
