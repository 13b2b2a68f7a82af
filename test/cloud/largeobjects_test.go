package cloud

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestLargeObjects: ConfigMaps that no pod of a node names take next to no memory of cloudcore, whatever their size. A
// node still gets the one that its pod names, its changes, and its end.
func TestLargeObjects(t *testing.T) {
	const objects, size, most = 500, 1 << 20, 64 << 20
	c := start(t, kube.Options{ControllerManager: true}, "rbac.yaml")
	maps := c.admin.CoreV1().ConfigMaps("default")
	var creates errgroup.Group
	creates.SetLimit(4)
	large := strings.Repeat("x", size-1024)
	for i := range objects {
		creates.Go(func() error {
			_, err := maps.Create(t.Context(), &v1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("large-", i)}, Data: map[string]string{"x": large},
			}, metav1.CreateOptions{})
			return err
		})
	}
	if err := creates.Wait(); err != nil {
		t.Fatal(err)
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	c.control()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	grown := heap() - before
	t.Logf("%d ConfigMaps of %d bytes: the caches take %d MiB, and the process has %d MiB from the system", objects,
		size, grown>>20, m.Sys>>20)
	if grown > most {
		t.Errorf("the caches take %d MiB, want at most %d", grown>>20, most>>20)
	}
	c.defaultAccount()
	c.register("l1")
	c.pod("l1", "web", `, volumes: [{name: v, configMap: {name: large-7}}]`)
	const named = "default/configmap/large-7"
	wait.Until(t, "the node to get what its pod names", func() error {
		if o, err := c.ctl.Object("l1", key(named)); err != nil || o == nil || len(o.JSON) < size-1024 {
			return fmt.Errorf("Object = %v, %v", o != nil, err)
		}
		return nil
	})
	calls := c.hub.count("l1", named)
	cm := c.wants("l1", named)
	if _, err := maps.Patch(t.Context(), "large-7", "application/merge-patch+json", []byte(`{"data":{"x":"small"}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the node to get the change", func() error {
		o, err := c.ctl.Object("l1", key(named))
		if err != nil || o == nil || o.ResourceVersion == cm.ResourceVersion || len(o.JSON) > 1024 {
			return fmt.Errorf("Object = %v, %v, want a small one", o != nil, err)
		}
		if c.hub.count("l1", named) == calls {
			return errors.New("the hub was not told")
		}
		return nil
	})
	if err := maps.Delete(t.Context(), "large-7", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the node to lose it", func() error {
		if o, err := c.ctl.Object("l1", key(named)); err != nil || o != nil {
			return fmt.Errorf("Object = %v, %v, want none", o != nil, err)
		}
		return nil
	})
}
