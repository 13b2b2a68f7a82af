package objectsync

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/cloudhub/queue"
	"github.com/edgecore-io/edgecore/pkg/apis/reliablesyncs/v1alpha1"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

var noOptions = metav1.CreateOptions{}

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// syncObject makes one as KubeEdge writes it.
func syncObject(namespace, name, kind, object, rv string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "reliablesyncs.kubeedge.io/v1alpha1", "kind": "ObjectSync",
		"metadata": map[string]any{"name": name, "resourceVersion": "1"},
		"spec":     map[string]any{"objectAPIVersion": "v1", "objectKind": kind, "objectName": object},
	}}
	if namespace == "" {
		o.SetKind("ClusterObjectSync")
	} else {
		o.SetNamespace(namespace)
	}
	if rv != "" {
		o.Object["status"] = map[string]any{"objectResourceVersion": rv}
	}
	return o
}

type bench struct {
	t      *testing.T
	client *fake.FakeDynamicClient
	store  *Store
	stop   func()
}

func start(t *testing.T, objects ...runtime.Object) *bench {
	t.Helper()
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{
			v1alpha1.ObjectSyncs: "ObjectSyncList", v1alpha1.ClusterObjectSyncs: "ClusterObjectSyncList",
		}, objects...)
	b := &bench{t: t, client: client}
	b.run()
	return b
}

func (b *bench) run() {
	store, err := New(b.client)
	if err != nil {
		b.t.Fatal(err)
	}
	b.store = store
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = store.Run(ctx) })
	b.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	b.t.Cleanup(b.stop)
	wait.True(b.t, "the store to be synced", store.Synced)
}

// api is what the API has: "namespace/name kind object rv version".
func (b *bench) api() []string {
	b.t.Helper()
	var all []string
	for _, gvr := range []schema.GroupVersionResource{v1alpha1.ObjectSyncs, v1alpha1.ClusterObjectSyncs} {
		list, err := b.client.Resource(gvr).List(context.Background(), metav1.ListOptions{})
		if err != nil {
			b.t.Fatal(err)
		}
		for _, o := range list.Items {
			field := func(path ...string) string {
				text, _, err := unstructured.NestedString(o.Object, path...)
				if err != nil {
					return "?"
				}
				return text
			}
			all = append(all,
				strings.TrimSpace(fmt.Sprintf("%s %s/%s %s %s %s %s %s", o.GetKind(), o.GetNamespace(), o.GetName(),
					field("spec", "objectAPIVersion"),
					field("spec", "objectKind"), field("spec", "objectName"), field("status", "objectResourceVersion"),
					field("status", "objectVersion"))))
		}
	}
	slices.Sort(all)
	return all
}

func (b *bench) want(want ...string) {
	b.t.Helper()
	wait.Until(b.t, "the sync objects of the API", func() error {
		if got := b.api(); !slices.Equal(got, want) {
			return fmt.Errorf("sync objects mismatch (-want +got):\n%s", cmp.Diff(want, got))
		}
		return nil
	})
}

func (b *bench) held(node string) map[string]string {
	b.t.Helper()
	held, err := b.store.Held(b.t.Context(), node)
	if err != nil {
		b.t.Fatal(err)
	}
	all := map[string]string{}
	for k, s := range held {
		all[k.String()] = fmt.Sprintf("%s %s %s", s.UID, s.ResourceVersion, s.Version)
	}
	return all
}

func (b *bench) writes() (creates, patches int) {
	for _, a := range b.client.Actions() {
		switch a.GetVerb() {
		case "create":
			creates++
		case "patch":
			patches++
		}
	}
	return creates, patches
}

func ref(key, kind, uid, rv string) cloudhub.Ref {
	k, err := resource.Parse(key)
	if err != nil {
		panic(err)
	}
	return cloudhub.Ref{Key: k, UID: types.UID(uid), APIVersion: "v1", Kind: kind, ResourceVersion: rv}
}

// TestLifeOfASyncObject: made when sent, with the version that KubeEdge takes for never acked; written once for many
// acks; deleted with its object.
func TestLifeOfASyncObject(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.store.plan("site.n1", ref("default/pod/web", "Pod", "u-1", "0"))
		b.want("ObjectSync default/site.n1.u-1 v1 Pod web 0")
		wait.Until(t, "the store to hear of it", func() error {
			if diff := cmp.Diff(map[string]string{"default/pod/web": "u-1 0 "}, b.held("site.n1")); diff != "" {
				return fmt.Errorf("held mismatch (-want +got):\n%s", diff)
			}
			return nil
		})
		for rv := 900; rv < 950; rv++ {
			b.store.Acked("site.n1", ref("default/pod/web", "Pod", "u-1", fmt.Sprint(rv)), fmt.Sprint("v", rv))
		}
		if diff := cmp.Diff(map[string]string{"default/pod/web": "u-1 949 v949"}, b.held("site.n1")); diff != "" {
			t.Errorf("held before it is written mismatch (-want +got):\n%s", diff)
		}
		b.want("ObjectSync default/site.n1.u-1 v1 Pod web 949 v949")
		if creates, patches := b.writes(); creates != 1 || patches > 10 {
			t.Errorf("%d creates, %d patches, want 1 and at most 10", creates, patches)
		}
		b.store.plan("n2", ref("null/node/n2", "Node", "u-n", "0"))
		b.store.Acked("n2", ref("null/node/n2", "Node", "u-n", "7"), "v")
		b.want("ClusterObjectSync /n2.u-n v1 Node n2 7 v", "ObjectSync default/site.n1.u-1 v1 Pod web 949 v949")
		wait.True(t, "both nodes to be known", func() bool { return len(b.store.Nodes()) == 2 })
		b.store.Deleted("site.n1", ref("default/pod/web", "Pod", "u-1", ""))
		wait.True(t, "nothing to be held after the delete", func() bool { return len(b.held("site.n1")) == 0 })
		b.want("ClusterObjectSync /n2.u-n v1 Node n2 7 v")
		b.store.Forget("n2")
		b.want()
	})
}

// TestTakeOverFromKubeEdge: what its cloudcore left is read as it is, whatever is in it, and not written again.
func TestTakeOverFromKubeEdge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t,
			syncObject("default", "n1.u-1", "Pod", "web", "900"),
			syncObject("default", "n1.u-2", "Pod", "api", "not a number"),
			syncObject("default", "n1.u-3", "ConfigMap", "conf", "0"),
			syncObject("default", "n1.u-4", "Pod", "web", "1000"), // a newer pod of the same name
			syncObject("", "n1.u-5", "Node", "n1", "12"),
			syncObject("default", "n10.u-6", "Pod", "other", "3"),
			syncObject("default", "nonsense", "Pod", "x", "3"),
			&unstructured.Unstructured{
				Object: map[string]any{
					"apiVersion": "reliablesyncs.kubeedge.io/v1alpha1", "kind": "ObjectSync",
					"metadata": map[string]any{"name": "n1.u-7", "namespace": "default"}, "spec": "nonsense",
					"status": []any{"x"},
				},
			},
		)
		want := map[string]string{
			"default/pod/web": "u-4 1000 ", "default/pod/api": "u-2 not a number ", "default/configmap/conf": "u-3 0 ",
			"null/node/n1": "u-5 12 ",
		}
		if diff := cmp.Diff(want, b.held("n1")); diff != "" {
			t.Errorf("held mismatch (-want +got):\n%s", diff)
		}
		b.store.Acked("n1", ref("default/pod/api", "Pod", "u-2", "950"), "v")
		wait.True(t, "the version to be a number", func() bool {
			return strings.Contains(strings.Join(b.api(), "\n"), "n1.u-2 v1 Pod api 950 v")
		})
		if creates, patches := b.writes(); creates != 0 || patches != 1 {
			t.Errorf("%d creates, %d patches, want 0 and 1", creates, patches)
		}
	})
}

// TestFailuresAreTriedAgain, also those of an object that someone deletes beside us.
func TestFailuresAreTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		var failures atomic.Int32
		failures.Store(3)
		b.client.PrependReactor("*", "objectsyncs", func(a ktesting.Action) (bool, runtime.Object, error) {
			if v := a.GetVerb(); v != "list" && v != "watch" && failures.Add(-1) >= 0 {
				return true, nil, apierrors.NewInternalError(fmt.Errorf("the API server is away"))
			}
			return false, nil, nil
		})
		b.store.plan("n1", ref("default/pod/web", "Pod", "u-1", "0"))
		b.store.Acked("n1", ref("default/pod/web", "Pod", "u-1", "5"), "v5")
		b.want("ObjectSync default/n1.u-1 v1 Pod web 5 v5")
		if err := b.client.Resource(v1alpha1.ObjectSyncs).Namespace("default").Delete(t.Context(), "n1.u-1",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		b.store.Acked("n1", ref("default/pod/web", "Pod", "u-1", "6"), "v6")
		b.want("ObjectSync default/n1.u-1 v1 Pod web 6 v6")
		b.store.Deleted("n1", ref("default/pod/web", "Pod", "u-1", ""))
		b.store.plan("n1", ref("default/pod/web", "Pod", "u-1", "0"))
		b.store.Acked("n1", ref("default/pod/web", "Pod", "u-1", "7"), "v7")
		b.want("ObjectSync default/n1.u-1 v1 Pod web 7 v7")
		wait.True(t, "the watch to tell", func() bool {
			r := b.store.known(id{"default", "n1.u-1"})
			return r != nil && r.rv == "7"
		})
		b.store.Forget("n1")
		b.want()
	})
}

// TestGoneNamespace: of an object whose namespace is gone nothing can be made, and nothing is tried for ever.
func TestGoneNamespace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.client.PrependReactor("create", "objectsyncs", func(ktesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "default")
		})
		b.store.plan("n1", ref("default/pod/web", "Pod", "u-1", "0"))
		wait.True(t, "the intent to go", func() bool {
			b.store.mu.Lock()
			defer b.store.mu.Unlock()
			return len(b.store.pending) == 0
		})
	})
}

// TestEndWritesWhatIsLeft: also what only has another resource version, which waits long otherwise.
func TestEndWritesWhatIsLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.store.plan("n1", ref("default/pod/web", "Pod", "u-1", "0"))
		b.store.Acked("n1", ref("default/pod/web", "Pod", "u-1", "5"), "v")
		b.want("ObjectSync default/n1.u-1 v1 Pod web 5 v")
		wait.True(t, "the watch to tell", func() bool {
			r := b.store.known(id{"default", "n1.u-1"})
			return r != nil && r.version == "v"
		})
		wait.True(t, "nothing to be left", func() bool {
			b.store.mu.Lock()
			defer b.store.mu.Unlock()
			return len(b.store.pending) == 0
		})
		_, before := b.writes()
		for rv := range 20 {
			b.store.Acked("n1", ref("default/pod/web", "Pod", "u-1", fmt.Sprint(10+rv)), "v")
		}
		b.store.plan("n1", ref("default/pod/late", "Pod", "u-2", "0"))
		b.store.mu.Lock()
		pause := time.Until(b.store.pending[id{"default", "n1.u-1"}].at)
		b.store.mu.Unlock()
		if pause < 30*time.Second {
			t.Errorf("a status of a pod is written after %v, want 30 s or more", pause)
		}
		b.stop()
		b.want("ObjectSync default/n1.u-1 v1 Pod web 29 v", "ObjectSync default/n1.u-2 v1 Pod late 0")
		if _, after := b.writes(); after-before != 2 {
			t.Errorf("%d patches at the end, want 2", after-before)
		}
		b.run()
		want := map[string]string{"default/pod/web": "u-1 29 v", "default/pod/late": "u-2 0 "}
		if diff := cmp.Diff(want, b.held("n1")); diff != "" {
			t.Errorf("held after a restart mismatch (-want +got):\n%s", diff)
		}
	})
}

func TestNeeds(t *testing.T) {
	for _, tt := range []struct {
		name             string
		rv, version      string
		newRV, newDigest string
		want             bool
	}{
		{"no status", "", "", "0", "", true},
		{"never acked is no news", "5", "v", "0", "", false},
		{"the same", "5", "v", "5", "v", false},
		{"KubeEdge wrote it, the hash is news", "5", "", "5", "v", true},
		{"newer", "5", "v", "10", "w", true},
		{"another cloudcore was faster", "10", "w", "5", "v", false},
		{"no number before", "x", "", "5", "v", true},
		{"no number now", "5", "v", "x", "w", true},
	} {
		r := &record{rv: tt.rv, version: tt.version}
		if got := needs(r, &intent{rv: tt.newRV, version: tt.newDigest}); got != tt.want {
			t.Errorf("%s: needs = %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestRepair: a sync object without a status makes KubeEdge's cloudcore stop, so it gets one.
func TestRepair(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, syncObject("default", "n1.u-1", "Pod", "web", ""))
		const repaired = "ObjectSync default/n1.u-1 v1 Pod web 0"
		wait.True(t, "the store to see to it", func() bool { // that it is synced does not say that yet
			if slices.Equal(b.api(), []string{repaired}) {
				return true
			}
			b.store.mu.Lock()
			defer b.store.mu.Unlock()
			in := b.store.pending[id{"default", "n1.u-1"}]
			return in != nil && in.rv == "0"
		})
		b.stop()
		b.want(repaired)
	})
}

// TestSmallRecords: the cache holds no more of a sync object than it needs.
func TestSmallRecords(t *testing.T) {
	got, err := trim(syncObject("default", "n1.u-1", "EndpointSlice", "web", "5"))
	if err != nil {
		t.Fatal(err)
	}
	r := got.(*record)
	if r.key() != (resource.Key{Namespace: "default", Type: "endpointslice", Name: "web"}) ||
		r.state() != (queue.State{UID: "u-1", ResourceVersion: "5"}) || r.node() != "n1" {
		t.Errorf("record %+v, want the endpointslice web of n1 with UID u and version 5", r)
	}
	if again, err := trim(r); err != nil || again != got {
		t.Errorf("trimmed again: %v, %v, want %v", again, err, got)
	}
	if _, err := trim("nonsense"); err == nil {
		t.Error("trim of a string = nil, want an error")
	}
}
