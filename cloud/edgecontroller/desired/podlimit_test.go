package desired

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// limitedFixture has node e1 with a small limit of its pods, and the cache of pods as it is in use.
func limitedFixture(t *testing.T, own, shared int) *fixture {
	w := newFixture(t)
	w.add(fakes.Node("e1"))
	w.room.own, w.room.shared = own, shared
	w.caches.Pods.Changed = w.podEvent
	return w
}

// put has the watch bring a pod.
func (w *fixture) put(pod *v1.Pod) {
	w.t.Helper()
	if err := w.caches.Pods.Update(pod.DeepCopy()); err != nil {
		w.t.Fatal(err)
	}
}

// filledPod is a pod of e1 with an annotation of that size.
func filledPod(namespace, name string, size int, created int64) *v1.Pod {
	p := fakes.Pod("e1", namespace, name)
	p.UID = types.UID(fmt.Sprint(namespace, "-", name, "-", created))
	p.CreationTimestamp = metav1.Unix(created, 0)
	p.Annotations = map[string]string{"fill": strings.Repeat("x", size)}
	return p
}

func startedAt(pod *v1.Pod, second int64) *v1.Pod {
	at := metav1.Unix(second, 0)
	pod.Status.StartTime = &at
	return pod
}

// serve has the API server answer with pods.
func (w *fixture) serve(pods map[string]*v1.Pod) {
	w.api.Answer(func(r fakes.Call) (int, any) {
		for key, pod := range pods {
			if strings.HasSuffix(r.Path, "/namespaces/"+pod.Namespace+"/pods/"+key) {
				return http.StatusOK, pod
			}
		}
		return fakes.NotFound(r.Path)
	})
}

// takenBytes returns what the pods of e1 that have their room take.
func (w *fixture) takenBytes() (bytes int) {
	n := w.room.nodes["e1"]
	if n == nil {
		return 0
	}
	for _, p := range n.pods {
		if p.admitted() {
			bytes += p.size
		}
	}
	return bytes
}

// TestEndingPodsTakeNoRoom: a node without room gets little of pods that are deleted before they had room, whatever
// they are like. They take no room afterwards either, when the node holds them, or reports them.
func TestEndingPodsTakeNoRoom(t *testing.T) {
	const n, own, shared = 20, 40 << 10, 200 << 10
	w := limitedFixture(t, own, shared)
	all := map[string]*v1.Pod{}
	w.serve(all)
	for i := range n {
		p := filledPod("greedy", fmt.Sprint("p", i), 0, int64(i))
		p.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
		p.Finalizers = []string{"example.com/never"}
		p.Spec.Containers = nil
		for c := range endingContainers {
			p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: fmt.Sprint("c", c),
				Image: strings.Repeat("i", 40<<10)})
		}
		at := metav1.Unix(int64(i), 0)
		p.DeletionTimestamp = &at
		p.ResourceVersion = fmt.Sprint(i + 1)
		all[p.Name] = p
		w.put(p)
	}
	sent := 0
	var held []wire.Held
	for _, p := range all {
		o, err := w.podFor("e1", caches.PodKey(p))
		if err != nil {
			t.Fatal(err)
		}
		if o.Done != nil {
			o.Done()
		}
		sent += len(o.JSON)
		held = append(held, fakes.HeldStatus(p, ""))
	}
	if sent > own+shared {
		t.Errorf("the device gets %d KiB of pods that end, want at most %d", sent>>10, (own+shared)>>10)
	}
	check := func(when string) {
		t.Helper()
		if taken := w.takenBytes(); taken > 0 {
			t.Errorf("%s they take %d KiB, want none", when, taken>>10)
		}
	}
	check("sent,")
	w.sessions.Connected("e1", "edgecore/websocket")
	w.Inventoried(t.Context(), "e1", held)
	check("after a reconnect")
	for _, p := range all {
		p = startedAt(p.DeepCopy(), p.DeletionTimestamp.Unix())
		p.ResourceVersion = "100"
		w.put(p)
	}
	check("reported by the node,")
}

// TestEndingPodsShrink: a node has been sent pods whole that were being deleted, as it had room. When others come, it
// gets no more of them than it takes to end them.
func TestEndingPodsShrink(t *testing.T) {
	w := limitedFixture(t, 0, 100<<10)
	at := metav1.Unix(10, 0)
	gone := filledPod("greedy", "gone", 50<<10, 1)
	gone.DeletionTimestamp = &at
	w.put(gone)
	whole, err := w.podFor("e1", caches.PodKey(gone))
	if err != nil || len(whole.JSON) < 50<<10 {
		t.Fatalf("podFor = %v, %v; want the whole pod", whole, err)
	}
	w.hub.Take()
	next := filledPod("greedy", "next", 60<<10, 2)
	w.put(next)
	if why := w.room.withheldWhy("e1", next.UID); why != withheldNot {
		t.Errorf("the next pod is withheld: %q", why)
	}
	if got := w.hub.Take(); !slices.Contains(got, "e1 greedy/pod/gone") {
		t.Errorf("the hub hears of %v, want also of the pod that ends", got)
	}
	end, err := w.podFor("e1", caches.PodKey(gone))
	if err != nil || len(end.JSON) > endingBytes || !end.Deleting {
		t.Errorf("podFor = %v, %v; want what it takes to end the pod", end, err)
	}
}

// TestStartedBefore: a pod that started after it was deleted has not got its room.
func TestStartedBefore(t *testing.T) {
	for name, tc := range map[string]struct {
		started, deletion, grace int64
		want                     bool
	}{
		"not started":            {0, 0, 0, false},
		"started":                {5, 0, 0, true},
		"deleted later":          {5, 36, 30, true},
		"deleted at that second": {5, 35, 30, false},
		"deleted before":         {5, 20, 30, false},
	} {
		pod := fakes.Pod("e1", "ns", "p")
		if tc.started > 0 {
			startedAt(pod, tc.started)
		}
		if tc.deletion > 0 {
			at := metav1.Unix(tc.deletion, 0)
			pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &at, &tc.grace
		}
		if got := startedBefore(pod); got != tc.want {
			t.Errorf("%s: startedBefore = %v, want %v", name, got, tc.want)
		}
	}
}

// TestRollingPodsKeepRoom: a tenant replaces its pods one by one, while another one's queue waits for room. Each new
// pod gets the room of the one that it replaces.
func TestRollingPodsKeepRoom(t *testing.T) {
	const pods, size = 4, 48 << 10
	w := limitedFixture(t, 100<<10, 400<<10)
	for i := range pods {
		w.put(startedAt(filledPod("honest", fmt.Sprint("old", i), size, int64(i)), 1))
	}
	for i := range 8 {
		w.put(startedAt(filledPod("greedy", fmt.Sprint("g", i), 45<<10, int64(10+i)), 1))
	}
	for i := range 40 {
		queued := filledPod("greedy", fmt.Sprint("q", i), 10<<10, int64(20+i))
		w.put(queued)
		w.room.send("e1", queued.UID, 10<<10)
	}
	for i := range pods {
		w.put(filledPod("honest", fmt.Sprint("new", i), size, int64(100+i)))
		if err := w.caches.Pods.Delete(filledPod("honest", fmt.Sprint("old", i), size, int64(i))); err != nil {
			t.Fatal(err)
		}
		for uid := range w.room.nodes["e1"].pods { // what has room is sent at once
			w.room.send("e1", uid, size)
		}
		replacement := filledPod("honest", fmt.Sprint("new", i), size, int64(100+i))
		if why := w.room.withheldWhy("e1", replacement.UID); why != withheldNot {
			t.Errorf("pod %d that replaces another is withheld: %q", i, why)
		}
	}
}

// TestChangesThatDoNotGrow: tenants with many namespaces fill a node. Changes of another's pods are sent all the same
// if they do not make these larger, also after a reconnect.
func TestChangesThatDoNotGrow(t *testing.T) {
	w := limitedFixture(t, 10<<10, 100<<10)
	honest := startedAt(filledPod("honest", "h", 60<<10, 1), 1)
	w.put(honest)
	if o, err := w.podFor("e1", caches.PodKey(honest)); o == nil || err != nil {
		t.Fatalf("podFor = %v, %v; want the pod", o, err)
	}
	var held []wire.Held
	for i := range 3 {
		greedy := startedAt(filledPod(fmt.Sprint("greedy", i), "g", 60<<10, 3), 1)
		w.put(greedy)
		held = append(held, fakes.HeldStatus(greedy, ""))
	}
	version := 1
	change := func(size int, want bool) *cloudhub.Object {
		t.Helper()
		version++
		honest = startedAt(filledPod("honest", "h", size, 1), 1)
		honest.ResourceVersion = fmt.Sprint(version)
		honest.Spec.Containers[0].Image = fmt.Sprint("example.com/web:", version)
		w.put(honest)
		if why := w.room.nodes["e1"].withheld[honest.UID]; why != withheldChange {
			t.Fatalf("the pod is withheld as %q, want %q: the test is wrong", why, withheldChange)
		}
		o, err := w.podFor("e1", caches.PodKey(honest))
		if (o != nil) != want || !want && !errors.Is(err, cloudhub.ErrWithheld) {
			t.Errorf("podFor = %v, %v; want it sent: %v", o, err, want)
		}
		return o
	}
	change(60<<10, false) // its first image makes it larger
	change(59<<10, true)
	change(60<<10, false)
	if n := w.room.withheldPods()[withheldChange]; n != 4 {
		t.Errorf("%d pods count as withheld, want all 4", n)
	}
	o := change(59<<10, true)
	if n := w.room.withheldPods()[withheldChange]; n != 3 {
		t.Errorf("%d pods count as withheld, want 3", n)
	}
	w.sessions.Connected("e1", "edgecore/websocket")
	at := fakes.HeldStatus(honest, "")
	at.Version = o.Version
	w.Inventoried(t.Context(), "e1", append(held, at))
	change(59<<10, true)
	at.Version = "another"
	w.Inventoried(t.Context(), "e1", append(held, at))
	change(59<<10, false)
}

// TestWithheldChangeNotice: a change that is withheld queues an event, and one that is sent does not.
func TestWithheldChangeNotice(t *testing.T) {
	w := limitedFixture(t, 0, 50<<10)
	pod := startedAt(filledPod("a", "p", 60<<10, 1), 1)
	w.put(pod)
	w.room.setDelivered("e1", pod.UID, caches.SizeOf(pod))
	for w.notices.Keys.Len() > 0 {
		k, _ := w.notices.Keys.Get()
		w.notices.Keys.Done(k)
	}
	grow := func(size, want int) {
		t.Helper()
		pod = startedAt(filledPod("a", "p", size, 1), 1)
		pod.ResourceVersion = fmt.Sprint(size)
		w.put(pod)
		if n := w.notices.Keys.Len(); n != want {
			t.Errorf("%d events are queued after the pod has %d bytes, want %d", n, size, want)
		}
	}
	grow(55<<10, 0)
	grow(70<<10, 1)
}

// TestHeldOnceSent: a pod that could not be read from the API server takes no room from an older one that comes later.
func TestHeldOnceSent(t *testing.T) {
	w := limitedFixture(t, 0, 200<<10)
	pod := filledPod("greedy", "p", 150<<10, 2)
	w.put(pod)
	if o, err := w.podFor("e1", caches.PodKey(pod)); o != nil || err == nil { // the API server has no such pod
		t.Fatal(o, err)
	}
	older := filledPod("honest", "h", 100<<10, 1)
	w.put(older)
	if why := w.room.withheldWhy("e1", older.UID); why != withheldNot {
		t.Errorf("the older pod is withheld: %q", why)
	}
}

// TestRoomTakenMeanwhile: while a pod is read from the API server, an older one comes and takes its room.
func TestRoomTakenMeanwhile(t *testing.T) {
	w := limitedFixture(t, 0, 200<<10)
	pod := filledPod("greedy", "p", 150<<10, 2)
	pod.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	w.put(pod)
	w.api.Answer(func(fakes.Call) (int, any) {
		w.put(filledPod("honest", "h", 100<<10, 1))
		return http.StatusOK, pod
	})
	if o, err := w.podFor("e1", caches.PodKey(pod)); o != nil || !errors.Is(err, cloudhub.ErrWithheld) {
		t.Errorf("podFor = %v, %v; want it withheld", o, err)
	}
	if n := w.wholeSent.Taken(); n != 0 {
		t.Errorf("%d bytes are on their way, want none", n)
	}
	if taken := w.takenBytes(); taken != 0 {
		t.Errorf("%d bytes are taken, want none", taken)
	}
}

// TestReinstalledDevice: a device that has lost its disk gets its pods again as far as there is room for them.
func TestReinstalledDevice(t *testing.T) {
	w := limitedFixture(t, 10<<10, 100<<10)
	honest := startedAt(filledPod("honest", "h", 60<<10, 1), 1)
	w.put(honest)
	for i := range 3 {
		w.put(startedAt(filledPod(fmt.Sprint("greedy", i), "g", 60<<10, 3), 1))
	}
	if why := w.room.withheldWhy("e1", honest.UID); why != withheldChange {
		t.Fatalf("before, the pod is withheld as %q, want %q", why, withheldChange)
	}
	w.sessions.Connected("e1", "edgecore/websocket")
	w.hub.Take()
	w.Inventoried(t.Context(), "e1", nil)
	if got := w.hub.Take(); !slices.Contains(got, "e1 honest/pod/h") {
		t.Errorf("the hub hears of %v, want of the oldest pod", got)
	}
	if o, err := w.podFor("e1", caches.PodKey(honest)); o == nil || err != nil {
		t.Errorf("podFor = %v, %v; want the oldest pod", o, err)
	}
}

// TestNoticeAfterInventory: a pod that has to wait for one that the node holds gets an event.
func TestNoticeAfterInventory(t *testing.T) {
	w := limitedFixture(t, 0, 100<<10)
	old, next := filledPod("a", "old", 60<<10, 1), filledPod("b", "new", 60<<10, 2)
	w.put(old)
	w.put(next)
	w.sessions.Connected("e1", "edgecore/websocket")
	for w.notices.Keys.Len() > 0 {
		k, _ := w.notices.Keys.Get()
		w.notices.Keys.Done(k)
	}
	w.Inventoried(t.Context(), "e1", []wire.Held{fakes.HeldStatus(next, "")})
	if why := w.room.withheldWhy("e1", old.UID); why != withheldWaiting || w.notices.Keys.Len() == 0 {
		t.Errorf("the older pod is withheld as %q, and %d events are queued", why, w.notices.Keys.Len())
	}
}

// TestOneLargePodCostsNoLists: the pods of a node with one large pod are listed in one request.
func TestOneLargePodCostsNoLists(t *testing.T) {
	for large, want := range map[int]string{1: "500", 60: "5"} {
		w := limitedFixture(t, 1<<20, 16<<20)
		for i := range large {
			w.put(filledPod("greedy", fmt.Sprint("g", i), 100<<10, 1))
		}
		w.put(filledPod("honest", "h", 10, 2))
		w.podLists.connected("e1")
		var pages []string
		w.api.OnRequest = func(r *http.Request) { pages = append(pages, r.URL.Query().Get("limit")) }
		w.api.Has("10", filledPod("honest", "h", 10, 2))
		if o, err := w.Object("e1", fakes.Key("honest/pod/h")); o == nil || err != nil {
			t.Fatalf("Object = %v, %v", o, err)
		}
		if !slices.Equal(pages, []string{want}) {
			t.Errorf("with %d large pods the pages have %v pods, want %s", large, pages, want)
		}
	}
}

// TestReplacedPodIsSentAtOnce: a pod whose predecessor is gone before it comes has its room if there is room, also on a
// node whose other pods wait.
func TestReplacedPodIsSentAtOnce(t *testing.T) {
	for name, sameName := range map[string]bool{"Deployment": false, "StatefulSet": true} {
		t.Run(name, func(t *testing.T) {
			w := limitedFixture(t, 0, 200<<10)
			old := startedAt(filledPod("honest", "p0", 48<<10, 1), 1)
			w.put(old)
			w.put(startedAt(filledPod("greedy", "g", 100<<10, 2), 1))
			w.put(filledPod("greedy", "waits", 150<<10, 3))
			if n := w.room.withheldPods()[withheldWaiting]; n != 1 {
				t.Fatalf("%d pods wait, want 1: the test is wrong", n)
			}
			if err := w.caches.Pods.Delete(old); err != nil {
				t.Fatal(err)
			}
			next := filledPod("honest", "p1", 48<<10, 4)
			if sameName {
				next.Name = "p0"
			}
			w.put(next)
			if o, err := w.podFor("e1", caches.PodKey(next)); o == nil || err != nil {
				t.Errorf("podFor = %v, %v; want the pod", o != nil, err)
			}
		})
	}
}
