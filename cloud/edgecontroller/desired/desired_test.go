package desired

import (
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

func (w *fixture) desired(node string) []string {
	var out []string
	for _, ref := range w.Desired(node) {
		if ref.APIVersion != "v1" || ref.Kind == "" || ref.UID == "" || ref.ResourceVersion == "" {
			w.t.Errorf("reference %+v, want all its fields set", ref)
		}
		out = append(out, ref.Key.String())
	}
	slices.Sort(out)
	return out
}

func TestDesired(t *testing.T) {
	w := newFixture(t)
	quiet := fakes.Pod("e1", "quiet", "q")
	quiet.Spec.EnableServiceLinks = new(false)
	w.add(fakes.Node("e1"), fakes.Node("e2"), fakes.Pod("e1", "ns", "a"), fakes.Pod("e1", "ns", "b"), quiet,
		fakes.Pod("e2", "ns", "c"),
		&v1.ConfigMap{ObjectMeta: fakes.ObjectMeta("ns", "cm-a", "1")},
		&v1.ConfigMap{ObjectMeta: fakes.ObjectMeta("ns", "cm-c", "1")},
		&v1.ConfigMap{ObjectMeta: fakes.ObjectMeta("other", "cm-a", "1")},
		&v1.Secret{ObjectMeta: fakes.ObjectMeta("ns", "shared", "1")},
		fakes.Service("ns", "db", "10.0.0.2"), fakes.Service("ns", "headless", "None"),
		fakes.Service("quiet", "db", "10.0.0.3"),
		fakes.Service("default", "kubernetes", "10.0.0.1"), fakes.Service("default", "web", "10.0.0.4"))
	all := []string{"ns/configmap/cm-a", "ns/pod/a", "ns/pod/b", "ns/secret/shared", "null/node/e1", "quiet/pod/q"}
	services := []string{"default/service/kubernetes", "ns/service/db"}
	if diff := cmp.Diff(all, w.desired("e1")); diff != "" {
		t.Errorf("an edge that is not connected: mismatch (-want +got):\n%s", diff)
	}
	w.Connected(t.Context(), "e1", "websocket")
	if diff := cmp.Diff(all, w.desired("e1")); diff != "" {
		t.Errorf("an upstream edge: mismatch (-want +got):\n%s", diff)
	}
	w.Connected(t.Context(), "e1", "edgecore/websocket")
	want := slices.Sorted(slices.Values(append(slices.Clone(all), services...)))
	want = slices.DeleteFunc(want, func(key string) bool { return key == "null/node/e1" }) // it makes it itself
	if diff := cmp.Diff(want, w.desired("e1")); diff != "" {
		t.Errorf("an edge of ours: mismatch (-want +got):\n%s", diff)
	}
	w.Disconnected("e1", "replaced")
	if diff := cmp.Diff(want, w.desired("e1")); diff != "" {
		t.Errorf("after the older of two sessions ended: mismatch (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"ns/configmap/cm-c", "ns/pod/c", "ns/secret/shared", "null/node/e2"},
		w.desired("e2")); diff != "" {
		t.Errorf("the other edge: mismatch (-want +got):\n%s", diff)
	}
	if got := w.desired("nobody"); got != nil {
		t.Errorf("a node without pods is to have %v, want nothing", got)
	}
}

func TestObject(t *testing.T) {
	w := newFixture(t)
	pod := fakes.Pod("e1", "ns", "a")
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "x"}}
	conf := &v1.ConfigMap{ObjectMeta: fakes.ObjectMeta("ns", "cm-a", "7"), Data: map[string]string{"k": "v"}}
	w.add(fakes.Node("e1"), pod, conf, &v1.Secret{ObjectMeta: fakes.ObjectMeta("ns", "other", "1")},
		fakes.Service("ns", "db", "10.0.0.2"))
	for text, want := range map[string]string{
		"ns/pod/a":          `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a",`,
		"ns/configmap/cm-a": `{"kind":"ConfigMap","apiVersion":"v1",`,
		"null/node/e1":      `{"kind":"Node","apiVersion":"v1",`,
	} {
		for range 2 { // the second may come out of the memory of encoded objects
			o, err := w.Object("e1", fakes.Key(text))
			if err != nil || o == nil || !strings.HasPrefix(string(o.JSON), want) || o.Version == "" ||
				o.Key != fakes.Key(text) || o.UID == "" || o.Deleting {
				t.Errorf("Object(%s) = %+v, %v; want JSON that begins with %s", text, o, err, want)
			}
			if strings.Contains(string(o.JSON), "managedFields") {
				t.Errorf("%s has managedFields, want none: %s", text, o.JSON)
			}
		}
	}
	if pod.Kind != "" || pod.ManagedFields == nil || conf.Kind != "" {
		t.Errorf("objects in the cache: kinds %q and %q, managedFields %v; want no kinds and the fields as before",
			pod.Kind, conf.Kind, pod.ManagedFields)
	}
	if calls := w.api.Seen(); calls != nil {
		t.Errorf("the API server was asked %v, want nothing", calls)
	}
	for _, text := range []string{
		"ns/secret/other", "null/node/e2", "ns/service/db", "ns/endpoints/db", "ns/configmap/none", "ns/node/e1",
	} {
		if o, err := w.Object("e1", fakes.Key(text)); o != nil || err != nil {
			t.Errorf("%s: %v %+v, want none", text, err, o)
		}
	}
	if o, err := w.Object("e2", fakes.Key("ns/pod/a")); o != nil || err != nil {
		t.Errorf("the pod of another node: %+v, %v; want none", o, err)
	}
	if calls := w.api.Seen(); calls != nil {
		t.Errorf("the API server was asked %v about what the cache knows, want nothing", calls)
	}
	w.Connected(t.Context(), "e1", "edgecore/quic")
	w.Inventoried(t.Context(), "e1", []wire.Held{fakes.HeldStatus(pod, "")})
	if o, err := w.Object("e1", fakes.Key("ns/service/db")); o == nil || err != nil {
		t.Errorf("a service for an edge of ours: %+v, %v; want an object", o, err)
	}
	deleting := fakes.Pod("e1", "ns", "a")
	deleting.DeletionTimestamp = new(metav1.Now())
	w.add(deleting)
	if o, err := w.Object("e1", fakes.Key("ns/pod/a")); err != nil || o == nil || !o.Deleting {
		t.Errorf("a pod that is being deleted: %+v, %v; want an object with Deleting", o, err)
	}
}

// TestGoneIsConfirmed: what the cache does not have may be known to another cloudcore.
func TestGoneIsConfirmed(t *testing.T) {
	w := newFixture(t)
	w.api.Answer(func(c fakes.Call) (int, any) { return http.StatusServiceUnavailable, "down" })
	if o, err := w.Object("e1", fakes.Key("ns/pod/a")); err == nil {
		t.Errorf("the API server is down, and the pod is %+v; want an error", o)
	}
	pod := fakes.Pod("e1", "ns", "a")
	pod.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	w.api.Answer(func(c fakes.Call) (int, any) { return http.StatusOK, pod })
	if o, err := w.Object("e1", fakes.Key("ns/pod/a")); err != nil || o == nil {
		t.Errorf("a pod that the cache does not know yet: %+v, %v; want an object", o, err)
	}
	if o, err := w.Object("e2", fakes.Key("ns/pod/a")); err != nil || o != nil {
		t.Errorf("... of another node: %+v, %v; want none", o, err)
	}
	w.api.Answer(nil)
	if o, err := w.Object("e1", fakes.Key("ns/pod/a")); err != nil || o != nil {
		t.Errorf("a pod that is gone: %+v, %v; want none", o, err)
	}
	w.add(pod)
	for _, text := range []string{"ns/configmap/cm-a", "ns/secret/shared", "null/node/e1"} {
		w.api.Answer(nil)
		if o, err := w.Object("e1", fakes.Key(text)); err != nil || o != nil {
			t.Errorf("%s is gone: %+v, %v; want none", text, o, err)
		}
		if len(w.api.Seen()) != 1 {
			t.Errorf("%s: the API server saw %v, want one call", text, w.api.Seen())
		}
	}
	w.filled.Store(false)
	if o, err := w.Object("e1", fakes.Key("ns/pod/a")); err == nil || o != nil || w.Desired("e1") != nil {
		t.Errorf("before the caches are filled: %+v, %v; want an error", o, err)
	}
}

// TestVolumeSecret: a secret of a volume, which no pod names, is the node's for as long as the API server says so.
func TestVolumeSecret(t *testing.T) {
	w := newFixture(t)
	k := fakes.Key("ns/secret/of-volume")
	w.add(fakes.Pod("e1", "ns", "a"))
	if o, err := w.Object("e1", k); o != nil || err != nil || w.api.Seen() != nil {
		t.Errorf("a node without volumes: %v, %v, calls %v; want none", o, err, w.api.Seen())
	}
	pod := fakes.Pod("e1", "ns", "with-volume")
	pod.Spec.Volumes = []v1.Volume{
		{VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}},
	}
	w.add(pod)
	forbid := metav1.Status{Status: "Failure", Reason: metav1.StatusReasonForbidden, Code: 403}
	for name, tc := range map[string]struct {
		reply       func(fakes.Call) (int, any)
		there, fail bool
	}{
		"allowed": {func(fakes.Call) (int, any) {
			return 200, map[string]any{
				"kind": "Secret", "apiVersion": "v1", "metadata": fakes.ObjectMeta("ns", "of-volume", "3"),
			}
		}, true, false},
		"forbidden": {func(fakes.Call) (int, any) { return 403, forbid }, false, false},
		"gone":      {nil, false, false},
		"down":      {func(fakes.Call) (int, any) { return 500, "x" }, false, true},
	} {
		w.api.Answer(tc.reply)
		o, err := w.Object("e1", k)
		if (o != nil) != tc.there || (err != nil) != tc.fail {
			t.Errorf("%s: %v, %v; want an object: %v, an error: %v", name, o, err, tc.there, tc.fail)
		}
		if diff := cmp.Diff([]string{"GET /api/v1/namespaces/ns/secrets/of-volume as system:node:e1"},
			w.api.Seen()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestVersions: the version is that of what the edge acts on, and the same on both ends.
func TestVersions(t *testing.T) {
	w := newFixture(t)
	version := func(change func(*v1.Pod)) string {
		pod := fakes.Pod("e1", "ns", "a")
		change(pod)
		w.add(pod)
		o, err := w.Object("e1", fakes.Key("ns/pod/a"))
		if err != nil {
			t.Fatal(err)
		}
		return o.Version
	}
	was := version(func(*v1.Pod) {})
	if got := version(func(p *v1.Pod) {
		p.ResourceVersion, p.Generation, p.Status.Phase = "9", 3, v1.PodRunning
	}); got != was {
		t.Errorf("version after a change of status = %s, want %s as before", got, was)
	}
	if got := version(func(p *v1.Pod) { p.Spec.Containers[0].Image = "x" }); got == was {
		t.Errorf("version after a change of the spec = %s as before, want another", got)
	}
}

// fleet fills the caches with nodes that have some pods each, in namespaces of ten nodes.
func fleet(w *fixture, nodes, pods int) {
	for n := range nodes {
		name := fmt.Sprintf("edge-%05d", n)
		w.add(fakes.Node(name))
		for p := range pods {
			w.add(fakes.Pod(name, fmt.Sprintf("ns-%03d", n/10), fmt.Sprintf("pod-%d-%d", n, p)))
		}
	}
}

// TestMemory: what the caches and their indices need for 1,000 idle nodes with three pods each.
func TestMemory(t *testing.T) {
	const nodes, budget = 1000, 20 << 10
	w := newFixture(t)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	fleet(w, nodes, 3)
	runtime.GC()
	runtime.ReadMemStats(&after)
	per := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / nodes
	t.Logf("%d bytes a node", per)
	if per > budget {
		t.Errorf("%d bytes a node, want at most %d", per, budget)
	}
	runtime.KeepAlive(w)
}

func BenchmarkDesired(b *testing.B) {
	w := newFixture(b)
	fleet(w, 5000, 3)
	b.ReportAllocs()
	for b.Loop() {
		w.Desired("edge-02500")
	}
}

func BenchmarkObject(b *testing.B) {
	w := newFixture(b)
	fleet(w, 100, 30)
	k := fakes.Key("ns-005/pod/pod-50-7")
	b.ReportAllocs()
	for b.Loop() {
		if o, err := w.Object("edge-00050", k); err != nil || o == nil {
			b.Fatalf("Object(%s) = %v, %v; want an object", k, o, err)
		}
	}
}

// BenchmarkSharedConfigMap is a configmap that 5,000 nodes have changing.
func BenchmarkSharedConfigMap(b *testing.B) {
	w := newFixture(b)
	for n := range 5000 {
		pod := fakes.Pod(fmt.Sprintf("edge-%05d", n), "ns", fmt.Sprintf("pod-%d", n))
		pod.Spec.Containers[0].EnvFrom[0].ConfigMapRef.Name = "all"
		w.add(pod)
	}
	old := &metav1.PartialObjectMetadata{ObjectMeta: fakes.ObjectMeta("ns", "all", "1")}
	now := &metav1.PartialObjectMetadata{ObjectMeta: fakes.ObjectMeta("ns", "all", "2")}
	event := w.NamedEvent(resource.TypeConfigMap)
	for b.Loop() {
		event(old, now)
		if n := len(w.hub.Take()); n != 5000 {
			b.Fatalf("%d nodes were told, want 5000", n)
		}
	}
}
