package cloud

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// heap returns the bytes of the live heap.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// controlSmall starts the controllers in a cluster that has so many objects of a size, and checks that their caches
// take at most so many bytes.
func (c *cloud) controlSmall(what string, objects, size int, most int64) {
	c.t.Helper()
	before := heap()
	c.control()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	grown := heap() - before
	c.t.Logf("%d %s of %d bytes: the caches take %d KiB, and the process has %d MiB from the system", objects, what,
		size, grown>>10, m.Sys>>20)
	if grown > most {
		c.t.Errorf("the caches take %d MiB, want at most %d", grown>>20, most>>20)
	}
}

// TestLargeObjects: ConfigMaps that no pod of a node names take next to no memory of cloudcore, whatever their size. A
// node still gets the one that its pod names, its changes, and its end.
func TestLargeObjects(t *testing.T) {
	const objects, size, most = 500, 1 << 20, 64 << 20
	c := start(t, kube.Options{ControllerManager: true}, "base/rbac.yaml")
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
	c.controlSmall("ConfigMaps", objects, size, most)
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

// TestLargePods: pods that are bound to a node without the label for edge nodes take next to no memory of cloudcore,
// whatever their size. Once the node has the label, or is registered, it gets them.
func TestLargePods(t *testing.T) {
	const objects, size, most = 300, 1 << 20, 32 << 20
	c := start(t, kube.Options{ControllerManager: true}, "base/rbac.yaml")
	c.defaultAccount()
	for _, name := range []string{"server", "later"} {
		if _, err := c.admin.CoreV1().Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	pods := c.admin.CoreV1().Pods("default")
	large := []v1.EnvVar{{Name: "LARGE", Value: strings.Repeat("x", size)}}
	create := func(node, name string) error {
		_, err := pods.Create(t.Context(), &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1.PodSpec{
				NodeName:   node,
				Containers: []v1.Container{{Name: "c", Image: "example.com/c:1", Env: large}},
			},
		}, metav1.CreateOptions{})
		return err
	}
	var creates errgroup.Group
	creates.SetLimit(4)
	for i := range objects {
		creates.Go(func() error { return create("server", fmt.Sprint("large-", i)) })
	}
	if err := errors.Join(creates.Wait(), create("later", "later-0"), create("later", "later-1")); err != nil {
		t.Fatal(err)
	}
	c.controlSmall("pods", objects, size, most)
	gets := func(node string, names ...string) {
		t.Helper()
		for _, name := range names {
			c.wants(node, "default/pod/"+name)
			if o, err := c.ctl.Object(node, key("default/pod/"+name)); err != nil || o == nil || len(o.JSON) < size {
				t.Errorf("Object(%s, %s) = %v, %v, want the pod", node, name, o != nil, err)
			}
			if c.hub.count(node, "default/pod/"+name) == 0 {
				t.Errorf("the hub was not told of %s on %s", name, node)
			}
		}
	}
	label := func(value string) {
		t.Helper()
		if _, err := c.admin.CoreV1().Nodes().Patch(t.Context(), "later", "application/merge-patch+json",
			fmt.Appendf(nil, `{"metadata":{"labels":{"node-role.kubernetes.io/edge":%s}}}`, value),
			metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	label(`""`)
	gets("later", "later-0", "later-1")
	label("null")
	wait.Until(t, "a node without the label to need nothing", func() error {
		if n := len(c.ctl.Desired("later")); n > 0 {
			return fmt.Errorf("it is to have %d objects", n)
		}
		return nil
	})
	if err := pods.Delete(t.Context(), "later-0", *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	label(`""`)
	gets("later", "later-1")
	if _, err := pods.Patch(t.Context(), "later-1", "application/merge-patch+json",
		[]byte(`{"metadata":{"annotations":{"changed":"yes"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the node to get the change, and not the deleted pod", func() error {
		o, err := c.ctl.Object("later", key("default/pod/later-1"))
		if err != nil || o == nil || !strings.Contains(string(o.JSON), `"changed":"yes"`) {
			return fmt.Errorf("Object = %v, %v, want the change", o != nil, err)
		}
		for _, ref := range c.ctl.Desired("later") {
			if ref.Key == key("default/pod/later-0") {
				return errors.New("the deleted pod is wanted")
			}
		}
		return nil
	})
	if err := create("new", "new-0"); err != nil {
		t.Fatal(err)
	}
	c.register("new")
	gets("new", "new-0")
}

// TestLargeServices: of a Service, cloudcore keeps what the environment variables of containers are made of. A node
// gets that, also of a Service with more ports than cloudcore keeps, and all of a Service that it asks for.
func TestLargeServices(t *testing.T) {
	const objects, size, ports, most = 300, 250 << 10, 5000, 16 << 20
	c := start(t, kube.Options{ControllerManager: true}, "base/rbac.yaml")
	services := c.admin.CoreV1().Services("default")
	large := map[string]string{"large": strings.Repeat("x", size)}
	create := func(name, ip string, ports ...v1.ServicePort) error {
		_, err := services.Create(t.Context(), &v1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: large},
			Spec:       v1.ServiceSpec{ClusterIP: ip, Ports: ports},
		}, metav1.CreateOptions{})
		return err
	}
	wide := make([]v1.ServicePort, ports)
	for i := range wide {
		wide[i] = v1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(i) + 1}
	}
	var creates errgroup.Group
	creates.SetLimit(4)
	for i := range objects {
		creates.Go(func() error { return create(fmt.Sprint("large-", i), v1.ClusterIPNone, wide[0]) })
	}
	if err := errors.Join(creates.Wait(), create("db", "", wide[0]), create("wide", "", wide...)); err != nil {
		t.Fatal(err)
	}
	c.controlSmall("Services", objects, size, most)
	c.defaultAccount()
	c.register("s1")
	c.pod("s1", "client", "")
	has := func(name string, ports int) {
		t.Helper()
		c.wants("s1", "default/service/"+name)
		wait.Until(t, fmt.Sprintf("the node to get %s with %d ports", name, ports), func() error {
			o, err := c.ctl.Object("s1", key("default/service/"+name))
			if err != nil || o == nil {
				return fmt.Errorf("Object = %v, %v", o != nil, err)
			}
			var s v1.Service
			if err := json.Unmarshal(o.JSON, &s); err != nil {
				return err
			}
			if len(s.Spec.Ports) != ports || s.Spec.ClusterIP == "" || s.Annotations != nil {
				return fmt.Errorf("it has %d ports, the address %q and %d annotations", len(s.Spec.Ports),
					s.Spec.ClusterIP, len(s.Annotations))
			}
			return nil
		})
	}
	has("db", 1)
	has("wide", ports)
	calls := c.hub.count("s1", "default/service/wide")
	if _, err := services.Patch(t.Context(), "wide", "application/json-patch+json",
		[]byte(`[{"op":"remove","path":"/spec/ports/0"}]`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	has("wide", ports-1)
	wait.True(t, "the hub to be told", func() bool { return c.hub.count("s1", "default/service/wide") > calls })
	db := object[v1.Service](c, c.must("s1", "query", "default/service/db", nil))
	if got := len(db.Annotations["large"]); got != size {
		t.Errorf("a Service that the node asks for has an annotation of %d bytes, want %d", got, size)
	}
}

// TestLargeEdgePods: pods on edge nodes take next to no memory of cloudcore beyond 64 KiB each. Their nodes get them
// whole all the same, and their changes and their end.
func TestLargeEdgePods(t *testing.T) {
	const objects, size, nodes, most = 400, 1 << 20, 64, 32 << 20
	c := start(t, kube.Options{ControllerManager: true}, "base/rbac.yaml")
	c.defaultAccount()
	for i := range nodes {
		if _, err := c.admin.CoreV1().Nodes().Create(t.Context(), edgeNode(fmt.Sprint("edge-", i)),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	pods := c.admin.CoreV1().Pods("default")
	large := []v1.EnvVar{{Name: "LARGE", Value: strings.Repeat("x", size)}}
	var creates errgroup.Group
	creates.SetLimit(4)
	for i := range objects {
		creates.Go(func() error {
			_, err := pods.Create(t.Context(), &v1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("large-", i)},
				Spec: v1.PodSpec{
					NodeName:   fmt.Sprint("edge-", i%nodes),
					Containers: []v1.Container{{Name: "c", Image: "example.com/c:1", Env: large}},
				},
			}, metav1.CreateOptions{})
			return err
		})
	}
	if err := creates.Wait(); err != nil {
		t.Fatal(err)
	}
	c.controlSmall("pods of edge nodes", objects, size, most)
	const name = "default/pod/large-7"
	sent := func(what string, is func(o *cloudhub.Object) bool) {
		t.Helper()
		wait.Until(t, what, func() error {
			o, err := c.ctl.Object("edge-7", key(name))
			if o != nil && o.Done != nil {
				o.Done()
			}
			if err != nil || !is(o) {
				return fmt.Errorf("Object = %v, %v", o != nil, err)
			}
			return nil
		})
	}
	sent("the node to get its pod", func(o *cloudhub.Object) bool { return o != nil && len(o.JSON) > size })
	calls := c.hub.count("edge-7", name)
	if _, err := pods.Patch(t.Context(), "large-7", "application/merge-patch+json",
		[]byte(`{"status":{"message":"changed"}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Patch(t.Context(), "large-7", "application/merge-patch+json",
		[]byte(`{"metadata":{"annotations":{"changed":"yes"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	sent("the node to get the change", func(o *cloudhub.Object) bool {
		return o != nil && strings.Contains(string(o.JSON), `"changed":"yes"`) && len(o.JSON) > size
	})
	wait.True(t, "the hub to be told", func() bool { return c.hub.count("edge-7", name) == calls+1 })
	if err := pods.Delete(t.Context(), "large-7", *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	sent("the node to lose it", func(o *cloudhub.Object) bool { return o == nil })
}

// TestNodeOfLargePods: a node gets large pods as far as it has room for them, the oldest first, whatever a tenant
// creates. Another tenant's pods run and change there meanwhile. What waits comes when there is room, and every
// deletion.
func TestNodeOfLargePods(t *testing.T) {
	const objects, size, fit = 30, 1 << 20, 16
	c := start(t, kube.Options{ControllerManager: true}, "base/rbac.yaml")
	c.control()
	c.register("n1")
	for _, name := range []string{"greedy", "modest"} {
		c.apply(fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", name))
		wait.Until(t, "the account of "+name, func() error {
			_, err := c.admin.CoreV1().ServiceAccounts(name).Get(t.Context(), "default", metav1.GetOptions{})
			return err
		})
	}
	create := func(namespace, name string, size int) {
		t.Helper()
		var grace int64 = 1
		if _, err := c.admin.CoreV1().Pods(namespace).Create(t.Context(), &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1.PodSpec{
				NodeName:                      "n1",
				TerminationGracePeriodSeconds: &grace,
				Containers: []v1.Container{{Name: "c", Image: "example.com/c:1",
					Env: []v1.EnvVar{{Name: "LARGE", Value: strings.Repeat("x", size)}}}},
			},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	send := func(name string) (*cloudhub.Object, error) {
		o, err := c.ctl.Object("n1", key(name))
		if o != nil && o.Done != nil {
			o.Done()
		}
		return o, err
	}
	sent := func(name string, is func(o *cloudhub.Object) bool) {
		t.Helper()
		wait.Until(t, "the node to get "+name, func() error {
			if o, err := send(name); err != nil || !is(o) {
				return fmt.Errorf("Object = %v, %v", o != nil, err)
			}
			return nil
		})
	}
	some := func(o *cloudhub.Object) bool { return o != nil }
	greedy := func(i int) string { return fmt.Sprintf("greedy/pod/large-%02d", i) }
	create("modest", "before", 100)
	for i := range objects {
		create("greedy", fmt.Sprintf("large-%02d", i), size)
	}
	create("modest", "after", 100)
	sent("modest/pod/before", some)
	sent("modest/pod/after", some)
	got := func() (names []string) {
		t.Helper()
		c.wants("n1", greedy(objects-1))
		for i := range objects {
			o, err := send(greedy(i))
			switch {
			case o != nil:
				names = append(names, greedy(i))
			case !errors.Is(err, cloudhub.ErrWithheld):
				t.Errorf("Object(%s) = none, %v; want it or that it is withheld", greedy(i), err)
			}
		}
		return names
	}
	first := got()
	if len(first) != fit {
		t.Errorf("the node gets %d large pods, want %d: %v", len(first), fit, first)
	}
	if _, err := c.admin.CoreV1().Pods("modest").Patch(t.Context(), "before", "application/merge-patch+json",
		[]byte(`{"metadata":{"annotations":{"changed":"yes"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	sent("modest/pod/before", func(o *cloudhub.Object) bool {
		return o != nil && strings.Contains(string(o.JSON), `"changed":"yes"`)
	})
	wait.Until(t, "an event of a pod that waits", func() error {
		list, err := c.admin.CoreV1().Events("greedy").List(t.Context(), metav1.ListOptions{
			FieldSelector: "reason=NodeHasNoRoom"})
		if err == nil && len(list.Items) == 0 {
			err = errors.New("there is none")
		}
		return err
	})
	c.control() // another one, which takes the node over
	c.ctl.Connected(t.Context(), "n1", "edgecore/websocket")
	t.Cleanup(func() { c.ctl.Disconnected("n1", "the test ended") })
	if again := got(); !slices.Equal(first, again) {
		t.Errorf("after a restart the node gets %v, before %v", again, first)
	}
	var waiting []string
	for i := range objects {
		if !slices.Contains(first, greedy(i)) {
			waiting = append(waiting, greedy(i))
		}
	}
	remove := func(key string, options metav1.DeleteOptions) {
		t.Helper()
		_, name, _ := strings.Cut(key, "/pod/")
		if err := c.admin.CoreV1().Pods("greedy").Delete(t.Context(), name, options); err != nil {
			t.Fatal(err)
		}
	}
	remove(waiting[0], metav1.DeleteOptions{})
	sent(waiting[0], func(o *cloudhub.Object) bool { return o != nil && o.Deleting && len(o.JSON) < 64<<10 })
	calls := map[string]int{}
	for _, name := range waiting[1:] {
		calls[name] = c.hub.count("n1", name)
	}
	remove(first[0], *metav1.NewDeleteOptions(0))
	wait.True(t, "a pod that has waited to be sent", func() bool {
		return slices.ContainsFunc(waiting[1:], func(name string) bool {
			o, _ := send(name)
			return o != nil && c.hub.count("n1", name) > calls[name]
		})
	})
}
