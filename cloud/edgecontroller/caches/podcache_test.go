package caches

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/test/testenv/fakemeta"
)

// podsEnv is a podCache whose watch, nodes and API server are the test.
type podsEnv struct {
	*podCache
	t     testing.TB
	nodes map[string]bool // that need their pods whole
	// events are the calls of changed, as "OLD NEW": versions, - for none, ? for a pod without a known version.
	events  []string
	fetches []string
}

func newPodsEnv(t testing.TB) *podsEnv {
	e := &podsEnv{t: t, nodes: map[string]bool{}}
	e.podCache = newPodCache(fake.NewClientset(), func(node string) bool { return e.nodes[node] })
	describe := func(pod *v1.Pod) string {
		switch {
		case pod == nil:
			return "-"
		case len(pod.Spec.Containers) == 0:
			return "?" + pod.ResourceVersion
		}
		return pod.ResourceVersion
	}
	e.Changed = func(old, now *v1.Pod) {
		if !e.mu.TryLock() {
			t.Error("mu is held during an event, want it free")
		} else {
			e.mu.Unlock()
		}
		e.events = append(e.events, describe(old)+" "+describe(now))
	}
	e.Fetch = func(node string) { e.fetches = append(e.fetches, node) }
	return e
}

func (e *podsEnv) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *podsEnv) label(node string, is bool) {
	e.nodes[node] = is
	e.NodeChanged(node)
}

// has returns the version of the whole pod ns/p, "" if it is not cached whole.
func (e *podsEnv) has() string {
	obj, _, err := e.indexer.GetByKey("ns/p")
	e.must(err)
	pod, _ := cachedPod(obj)
	if pod == nil {
		return ""
	}
	if pod.ManagedFields != nil {
		e.t.Errorf("cached managedFields = %v, want none", pod.ManagedFields)
	}
	return pod.ResourceVersion
}

func replacedPod(version string) *v1.Pod {
	pod := fakes.WholePod(version)
	pod.UID = "another"
	return pod
}

// TestNodeBecomesEdge: the pods of a node that becomes an edge node after its pods were cached come, whatever happens
// meanwhile, in no older version than before, and no pod comes that is gone.
func TestNodeBecomesEdge(t *testing.T) {
	for name, tc := range map[string]struct {
		do     func(e *podsEnv)
		has    string
		lacks  bool // a later list is needed
		events []string
	}{
		"a list": {func(e *podsEnv) { e.Fill("e1", []v1.Pod{*fakes.WholePod("5")}) }, "5", false, []string{"- 5"}},
		"an update before the list arrives": {func(e *podsEnv) {
			e.must(e.Update(fakes.WholePod("6")))
			e.Fill("e1", []v1.Pod{*fakes.WholePod("5")})
		}, "6", false, []string{"- 6"}},
		"an update after the list arrived": {func(e *podsEnv) {
			e.Fill("e1", []v1.Pod{*fakes.WholePod("5")})
			e.must(e.Update(fakes.WholePod("6")))
		}, "6", false, []string{"- 5", "5 6"}},
		"a list that is newer than the watch": {func(e *podsEnv) {
			e.Fill("e1", []v1.Pod{*fakes.WholePod("7")})
			if v := e.has(); v != "" {
				e.t.Errorf("before the watch has version 7 there is %s, want none: version 6 would follow", v)
			}
			e.must(e.Update(fakes.WholePod("6")))
			e.must(e.Update(fakes.WholePod("7")))
		}, "7", false, []string{"- 6", "6 7"}},
		"a list that is older": {func(e *podsEnv) { e.Fill("e1", []v1.Pod{*fakes.WholePod("4")}) }, "", true, nil},
		"a list without it":    {func(e *podsEnv) { e.Fill("e1", nil) }, "", true, nil},
		"a second list": {func(e *podsEnv) {
			e.Fill("e1", []v1.Pod{*fakes.WholePod("4")})
			e.Fill("e1", []v1.Pod{*fakes.WholePod("5")})
		}, "5", false, []string{"- 5"}},
		"deleted before the list arrives": {func(e *podsEnv) {
			e.must(e.Delete(fakes.WholePod("6")))
			e.Fill("e1", []v1.Pod{*fakes.WholePod("5")})
		}, "", false, []string{"6 -"}},
		"its deletion was missed": {func(e *podsEnv) {
			e.must(e.Replace(nil, "9"))
			e.Fill("e1", []v1.Pod{*fakes.WholePod("5")})
		}, "", false, []string{"?5 -"}},
		"replaced by a pod of the same name": {func(e *podsEnv) {
			e.must(e.Update(replacedPod("8")))
			e.Fill("e1", []v1.Pod{*fakes.WholePod("5")})
		}, "8", false, []string{"?5 8"}},
		"the list has another pod of the same name": {func(e *podsEnv) {
			e.Fill("e1", []v1.Pod{*replacedPod("5")})
		}, "", true, nil},
		"the label is removed before the list arrives": {func(e *podsEnv) {
			e.label("e1", false)
			e.Fill("e1", []v1.Pod{*fakes.WholePod("5")})
		}, "", false, nil},
		"the Node's event is late": {func(e *podsEnv) {
			e.nodes["e1"] = false
			e.Fill("e1", []v1.Pod{*fakes.WholePod("5")})
		}, "", true, nil},
		"the label is removed and added": {func(e *podsEnv) {
			e.Fill("e1", []v1.Pod{*fakes.WholePod("5")})
			e.label("e1", false)
			if v := e.has(); v != "" {
				e.t.Errorf("without the label there is version %s, want none", v)
			}
			e.must(e.Update(fakes.WholePod("6")))
			e.label("e1", true)
			e.Fill("e1", []v1.Pod{*fakes.WholePod("5")}) // of the first time
			e.Fill("e1", []v1.Pod{*fakes.WholePod("6")})
		}, "6", false, []string{"- 5", "- 6"}},
		"deleted without the label": {func(e *podsEnv) {
			e.Fill("e1", []v1.Pod{*fakes.WholePod("5")})
			e.label("e1", false)
			e.must(e.Delete(fakes.WholePod("6")))
			e.label("e1", true)
		}, "", false, []string{"- 5", "6 -"}},
		"etcd restored, versions go back": {func(e *podsEnv) {
			e.Fill("e1", []v1.Pod{*fakes.WholePod("3")}) // the watch does not know yet
			e.must(e.Replace([]any{fakes.WholePod("3")}, "3"))
			e.must(e.Update(fakes.WholePod("4")))
		}, "4", false, []string{"- 3", "3 4"}},
		"listed again meanwhile": {func(e *podsEnv) {
			e.must(e.Replace([]any{fakes.WholePod("5")}, "9"))
			e.Fill("e1", []v1.Pod{*fakes.WholePod("5")})
		}, "5", false, []string{"- 5"}},
		"the watch begins again with what was made small before": {func(e *podsEnv) {
			e.must(e.Replace([]any{identityOf(fakes.WholePod("6"))}, "9"))
			e.Fill("e1", []v1.Pod{*fakes.WholePod("5")})
			e.Fill("e1", []v1.Pod{*fakes.WholePod("6")})
		}, "6", false, []string{"- 6"}},
		"the same, after the list": {func(e *podsEnv) {
			e.Fill("e1", []v1.Pod{*fakes.WholePod("5")})
			e.must(e.Replace([]any{identityOf(fakes.WholePod("6"))}, "9"))
			if v := e.has(); v != "5" {
				e.t.Errorf("until version 6 is read there is %q, want 5: the pod is not gone", v)
			}
			e.Fill("e1", []v1.Pod{*fakes.WholePod("6")})
		}, "6", false, []string{"- 5", "5 6"}},
		"the same version, after the list": {func(e *podsEnv) {
			e.Fill("e1", []v1.Pod{*fakes.WholePod("5")})
			e.must(e.Replace([]any{identityOf(fakes.WholePod("5"))}, "9"))
		}, "5", false, []string{"- 5"}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newPodsEnv(t)
			e.must(e.Replace([]any{fakes.WholePod("5")}, "5"))
			if v := e.has(); v != "" || len(e.events) != 0 {
				t.Errorf("before its node has the label there is version %q and events %v, want none", v, e.events)
			}
			e.label("e1", true)
			if !e.Lacks("e1") || !slices.Equal(e.fetches, []string{"e1"}) {
				t.Errorf("lacks, fetches = %v, %v; want true, [e1]", e.Lacks("e1"), e.fetches)
			}
			tc.do(e)
			if v := e.has(); v != tc.has {
				t.Errorf("cached version = %q, want %q", v, tc.has)
			}
			if got := e.Lacks("e1"); got != tc.lacks {
				t.Errorf("lacks = %v, want %v", got, tc.lacks)
			}
			if diff := cmp.Diff(tc.events, e.events); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPodsOfOtherNodes: of pods that no edge node needs nothing is reported but their end.
func TestPodsOfOtherNodes(t *testing.T) {
	e := newPodsEnv(t)
	e.must(e.Add(fakes.WholePod("1")))
	e.must(e.Update(fakes.WholePod("2")))
	if n := len(e.events); n != 0 {
		t.Errorf("events = %v, want none", e.events)
	}
	e.must(e.Update(replacedPod("3")))
	e.must(e.Delete(replacedPod("4")))
	if diff := cmp.Diff([]string{"?2 -", "4 -"}, e.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if all, whole := e.Count(); all+whole+len(e.fetches) != 0 {
		t.Errorf("%d pods, %d whole, fetches %v; want none", all, whole, e.fetches)
	}
}

// TestMovedPod: a pod of the same name on another node takes the place of an edge node's, and the other way round.
func TestMovedPod(t *testing.T) {
	e := newPodsEnv(t)
	e.label("e1", true)
	e.must(e.Add(fakes.WholePod("1")))
	other := replacedPod("2")
	other.Spec.NodeName = "server"
	e.must(e.Update(other))
	if v := e.has(); v != "" {
		t.Errorf("version on the server = %s, want none", v)
	}
	e.must(e.Update(fakes.WholePod("3")))
	if diff := cmp.Diff([]string{"- 1", "1 -", "?2 3"}, e.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestPodCacheConcurrently: the watch, the events of Nodes, lists and readers do not disturb each other.
func TestPodCacheConcurrently(t *testing.T) {
	const last = 2000
	e := newPodsEnv(t)
	var edge, version atomic.Int64
	e.whole = func(string) bool { return edge.Load()%2 == 1 }
	newest := ""
	e.Changed = func(_, now *v1.Pod) {
		if now != nil {
			newest = now.ResourceVersion // the detector would find two at a time
		}
	}
	e.Fetch = func(string) {}
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := int64(1); i <= last; i++ {
			version.Store(i)
			if err := e.Update(fakes.WholePod(fmt.Sprint(i))); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Go(func() {
		for range last + 1 {
			edge.Add(1)
			e.NodeChanged("e1")
		}
	})
	wg.Go(func() {
		for range last {
			e.Fill("e1", []v1.Pod{*fakes.WholePod(fmt.Sprint(version.Load()))})
			e.Count()
		}
	})
	wg.Wait()
	e.Fill("e1", []v1.Pod{*fakes.WholePod(fmt.Sprint(last))})
	if got := e.has(); got != fmt.Sprint(last) || got != newest || e.Lacks("e1") {
		t.Errorf("in the end version %s is cached, %s was reported, lacks = %v; want %d, %d, false", got, newest,
			e.Lacks("e1"), last, last)
	}
}

// slowNodes is a client whose lists of Nodes take a minute.
type slowNodes struct{ *fake.Clientset }

func (c slowNodes) CoreV1() corev1.CoreV1Interface { return slowCore{c.Clientset.CoreV1()} }

type slowCore struct{ corev1.CoreV1Interface }

func (c slowCore) Nodes() corev1.NodeInterface { return slowNodeClient{c.CoreV1Interface.Nodes()} }

type slowNodeClient struct{ corev1.NodeInterface }

func (c slowNodeClient) List(ctx context.Context, o metav1.ListOptions) (*v1.NodeList, error) {
	time.Sleep(time.Minute)
	return c.NodeInterface.List(ctx, o)
}

// TestColdStart: when cloudcore starts, the pods of edge nodes are whole at once: the Nodes come first, however long
// that takes.
func TestColdStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := fakes.Pod("server", "ns", "other")
		client := slowNodes{fake.NewClientset(fakes.Node("e1"), fakes.WholePod("1"), other)}
		clients := impersonate.Clients{Own: client, Metadata: fakemeta.Of(client)}
		c, err := New(clients, func(string) bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		c.Pods.Fetch = func(node string) { t.Errorf("pods of %s are fetched, want none", node) }
		ctx, cancel := context.WithCancel(t.Context())
		defer c.Wait()
		defer cancel()
		if err := c.Start(ctx); err != nil {
			t.Fatal(err)
		}
		if all, whole := c.Pods.Count(); all != 2 || whole != 1 || c.Pod("ns", "p") == nil {
			t.Errorf("%d pods, %d whole; want 2, and that of e1 whole", all, whole)
		}
	})
}

// TestListInPages: an API server that cannot stream its list is asked for pages of current pods, and the pods of other
// nodes in them are made small.
func TestListInPages(t *testing.T) {
	w := newFixture(t)
	w.add(fakes.Node("e1"))
	w.api.Has("7", fakes.WholePod("1"), fakes.Pod("server", "ns", "other"))
	var asked []string
	pods := w.Own.CoreV1().Pods("")
	w.api.OnRequest = func(r *http.Request) { asked = append(asked, r.URL.RawQuery) }
	got, err := w.caches.Pods.list(t.Context(), pods, metav1.ListOptions{ResourceVersion: "0", Limit: PodPage})
	if err != nil {
		t.Fatal(err)
	}
	// After a watch has expired, too, the list is one of now.
	for _, o := range []metav1.ListOptions{
		{ResourceVersion: "5", Limit: PodPage},
		{ResourceVersion: "5", ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, Limit: PodPage},
	} {
		if _, err := w.caches.Pods.list(t.Context(), pods, o); err != nil {
			t.Fatal(err)
		}
	}
	const page = "fieldSelector=spec.nodeName%21%3D&limit=50"
	if diff := cmp.Diff([]string{page, page, page}, asked); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	items, err := meta.ExtractListWithAlloc(got)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"*v1.Pod", "*caches.podIdentity"} {
		if got := fmt.Sprintf("%T", items[i]); got != want {
			t.Errorf("pod %d is a %s, want a %s", i, got, want)
		}
	}
}

// TestOtherPodsAreSmall: a large pod that no edge node needs takes a few hundred bytes.
func TestOtherPodsAreSmall(t *testing.T) {
	const pods, size, most = 5000, 16 << 10, 700
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	e := newPodsEnv(t)
	before := heap()
	for i := range pods {
		name := fmt.Sprintf("deployment-7c5ddbdf54-%05d", i)
		pod := fakes.Pod(fmt.Sprint("server-", i%50), "namespace-of-a-tenant", name)
		pod.UID = types.UID(fmt.Sprintf("6f1c2d3e-0000-4000-8000-%012d", i))
		pod.ResourceVersion = fmt.Sprint(1000000 + i)
		pod.Annotations = map[string]string{"large": strings.Repeat("x", size)}
		e.must(e.Add(pod))
	}
	each := (heap() - before) / pods
	t.Logf("%d bytes for each pod", each)
	if each > most {
		t.Errorf("%d bytes for each pod, want at most %d", each, most)
	}
	runtime.KeepAlive(e)
}
