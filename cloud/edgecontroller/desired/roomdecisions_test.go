package desired

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

// runDecisions has a worker decide about nodes, as in use, and returns how many decisions it has made.
func (w *fixture) runDecisions() *atomic.Int64 {
	var decisions atomic.Int64
	w.room.withhold = func(pods map[types.UID]podNeed, own, shared int) map[types.UID]withheld {
		decisions.Add(1)
		return withholdPods(pods, own, shared)
	}
	w.decideRoom = w.roomDecisions.Keys.AddAfter
	ctx, cancel := context.WithCancel(w.t.Context())
	var workers sync.WaitGroup
	w.roomDecisions.Run(ctx, workers.Go)
	w.t.Cleanup(func() {
		cancel()
		workers.Wait()
	})
	return &decisions
}

// fillRoom lets n pods wait for room on e1.
func (w *fixture) fillRoom(n int) {
	w.add(fakes.Node("e1"))
	w.room.own, w.room.shared = 0, 200<<10
	w.caches.Pods.Changed = w.podEvent
	w.room.deciding = false
	for i := range n {
		w.put(filledPod("greedy", fmt.Sprint("g", i), 1<<10, int64(i)))
	}
	w.room.start()
	w.hub.Take()
}

// TestDecisionsAreShared: a burst of events about a node without room costs one or two decisions. A pod that came in it
// and has room is sent afterwards, with what it names, and not before.
func TestDecisionsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		w.fillRoom(1000)
		decisions := w.runDecisions()
		honest := filledPod("honest", "h", 10, 1)
		w.room.own = 100 << 10
		for i := range 500 {
			pod := filledPod("greedy", fmt.Sprint("g", i), 2<<10, int64(i))
			pod.ResourceVersion = fmt.Sprint(i + 2)
			w.put(pod)
		}
		w.put(honest)
		time.Sleep(time.Second) // of a simulated clock
		synctest.Wait()
		if n := decisions.Load(); n < 1 || n > 2 {
			t.Errorf("%d decisions for 501 events, want one or two", n)
		}
		w.put(filledPod("greedy", "another", 1<<10, 5000))
		time.Sleep(time.Second)
		synctest.Wait()
		if o, err := w.podFor("e1", caches.PodKey(honest)); o == nil || err != nil {
			t.Errorf("podFor = %v, %v; want the pod", o, err)
		}
		decided := decisions.Load()
		honest = honest.DeepCopy()
		honest.ResourceVersion, honest.Annotations["fill"] = "9", "yyyy" // smaller
		w.put(honest)
		if o, err := w.podFor("e1", caches.PodKey(honest)); o == nil || err != nil {
			t.Errorf("podFor = %v, %v; want a change that makes the pod smaller, without a decision", o, err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := decisions.Load() - decided; n != 1 {
			t.Errorf("%d decisions after one event, want 1", n)
		}
	})
}

// TestReleasedByDecision: a pod that waited for a decision, and has room, is told to the hub, its references first.
func TestReleasedByDecision(t *testing.T) {
	w := newFixture(t)
	w.fillRoom(500)
	w.decideRoom = func(string, time.Duration) {} // later
	w.room.own = 10 << 10
	honest := filledPod("honest", "h", 10, 1)
	w.put(honest)
	for _, name := range []string{"honest/pod/h", "honest/configmap/cm-h"} {
		if _, err := w.Object("e1", fakes.Key(name)); !errors.Is(err, cloudhub.ErrWithheld) {
			t.Errorf("Object(%s) before a decision = %v, want it withheld", name, err)
		}
	}
	w.hub.Take()
	w.roomChanged(w.room.decide("e1"))
	got := w.hub.Take()
	at := func(name string) int { return slices.Index(got, "e1 "+name) }
	if pod := at("honest/pod/h"); pod < 0 || at("honest/configmap/cm-h") < 0 || at("honest/configmap/cm-h") > pod ||
		at("honest/secret/shared") < 0 || at("honest/secret/shared") > pod {
		t.Errorf("the hub hears of %v, want of the pod and before it of what it names", got)
	}
	if o, err := w.podFor("e1", caches.PodKey(honest)); o == nil || err != nil {
		t.Errorf("podFor = %v, %v; want the pod", o, err)
	}
}

// TestDecisionsDelayNobody: while a decision about a node is computed, events are taken, and other nodes get pods.
// A pod whose room it may give to another one is not sent meanwhile.
func TestDecisionsDelayNobody(t *testing.T) {
	w := newFixture(t)
	w.fillRoom(500)
	var granted *v1.Pod
	for i := range 500 {
		pod := filledPod("greedy", fmt.Sprint("g", i), 1<<10, int64(i))
		if w.room.withheldWhy("e1", pod.UID) == withheldNot {
			granted = pod
			break
		}
	}
	inside := false
	w.room.withhold = func(pods map[types.UID]podNeed, own, shared int) map[types.UID]withheld {
		if inside {
			return withholdPods(pods, own, shared)
		}
		inside = true
		other := fakes.Pod("e2", "other", "p")
		w.add(fakes.Node("e2"))
		w.put(other)
		if o, err := w.podFor("e2", caches.PodKey(other)); o == nil || err != nil {
			t.Errorf("podFor = %v, %v; want the pod of another node", o, err)
		}
		if o, err := w.podFor("e1", caches.PodKey(granted)); o != nil || !errors.Is(err, cloudhub.ErrWithheld) {
			t.Errorf("podFor = %v, %v; want it withheld until the decision is made", o, err)
		}
		return withholdPods(pods, own, shared)
	}
	due := 0
	w.decideRoom = func(string, time.Duration) { due++ }
	w.roomChanged(w.room.decide("e1"))
	if !inside || due != 1 {
		t.Fatalf("a decision was made: %v; then %d are due, want 1", inside, due)
	}
	w.hub.Take()
	w.roomChanged(w.room.decide("e1"))
	if got := w.hub.Take(); !slices.Contains(got, "e1 "+caches.PodKey(granted).String()) {
		t.Errorf("the hub hears of %v, want of %s", got, caches.PodKey(granted))
	}
	if o, err := w.podFor("e1", caches.PodKey(granted)); o == nil || err != nil {
		t.Errorf("podFor = %v, %v; want the pod", o, err)
	}
}

// BenchmarkFullNodeEvents takes events of pods of a node on which thousands of pods wait for room.
func BenchmarkFullNodeEvents(b *testing.B) {
	w := newFixture(b)
	w.fillRoom(6000)
	decisions := w.runDecisions()
	version := 1
	for b.Loop() {
		version++
		pod := filledPod("greedy", fmt.Sprint("g", version%6000), 1<<10+version%2, int64(version%6000))
		pod.ResourceVersion = fmt.Sprint(version)
		w.put(pod)
	}
	b.ReportMetric(float64(decisions.Load())/float64(b.N), "decisions/op")
}

// TestReportedWhileWaiting: a node reports a pod that waits for room: it got it from another cloudcore. The pod's later
// changes wait, but what it names comes, so that it can start.
func TestReportedWhileWaiting(t *testing.T) {
	w := limitedFixture(t, 0, 100<<10)
	w.put(startedAt(filledPod("ns", "older", 60<<10, 1), 1))
	pod := filledPod("ns", "p", 50<<10, 2)
	w.put(pod)
	w.add(&v1.ConfigMap{ObjectMeta: fakes.ObjectMeta("ns", "cm-p", "1")})
	if _, err := w.Object("e1", fakes.Key("ns/configmap/cm-p")); !errors.Is(err, cloudhub.ErrWithheld) {
		t.Fatalf("Object = %v, want it withheld with its pod: the test is wrong", err)
	}
	w.hub.Take()
	pod = startedAt(pod, 3)
	pod.ResourceVersion = "2"
	w.put(pod)
	if why := w.room.nodes["e1"].withheld[pod.UID]; why != withheldChange {
		t.Fatalf("the pod is withheld as %q, want %q: the test is wrong", why, withheldChange)
	}
	got := w.hub.Take()
	if !slices.Contains(got, "e1 ns/configmap/cm-p") || !slices.Contains(got, "e1 ns/secret/shared") {
		t.Errorf("the hub hears of %v, want of what the pod names", got)
	}
	if o, err := w.Object("e1", fakes.Key("ns/configmap/cm-p")); o == nil || err != nil {
		t.Errorf("Object = %v, %v; want the ConfigMap", o, err)
	}
}

// TestSentBeforeTheRoomKnows: a pod that the cache has, and whose event has not come yet, is counted before it is sent.
func TestSentBeforeTheRoomKnows(t *testing.T) {
	w := limitedFixture(t, 0, 100<<10)
	first, second := filledPod("ns", "first", 60<<10, 1), filledPod("ns", "second", 60<<10, 2)
	w.add(first, second)
	if o, err := w.podFor("e1", caches.PodKey(second)); o == nil || err != nil {
		t.Fatalf("podFor = %v, %v; want the pod", o, err)
	}
	if o, err := w.podFor("e1", caches.PodKey(first)); o != nil || !errors.Is(err, cloudhub.ErrWithheld) {
		t.Errorf("podFor = %v, %v; want the pod withheld: another one has the room", o != nil, err)
	}
	w.podEvent(nil, second)
	w.podEvent(nil, first)
	if taken := w.takenBytes(); taken < 60<<10 || taken > 70<<10 {
		t.Errorf("%d KiB are taken, want those of the pod that was sent", taken>>10)
	}
	if why := w.room.withheldWhy("e1", first.UID); why != withheldWaiting {
		t.Errorf("the pod without room is withheld as %q, want %q", why, withheldWaiting)
	}
}

// TestGoneBeforeTheRoomKnows: a pod whose deletion the room hears of before it is counted does not count any more.
func TestGoneBeforeTheRoomKnows(t *testing.T) {
	w := limitedFixture(t, 0, 100<<10)
	pod := filledPod("ns", "p", 60<<10, 1)
	w.add(pod)
	w.room.own = 0
	w.decideRoom = func(string, time.Duration) { // between both looks into the cache
		if err := w.caches.Pods.Delete(pod); err != nil {
			t.Fatal(err)
		}
	}
	w.room.shared = 1
	if err := w.countPod("e1", pod); err == nil || w.room.nodes["e1"] != nil {
		t.Errorf("countPod = %v, and the node has pods: %v; want an error, and none", err, w.room.nodes["e1"] != nil)
	}
}

// TestCountedBeforeTheCache: a pod that the API server has and the cache lacks is counted when it is sent. If the cache
// never gets it, it counts until its node connects again.
func TestCountedBeforeTheCache(t *testing.T) {
	w := limitedFixture(t, 0, 100<<10)
	pod := filledPod("ns", "p", 60<<10, 1)
	pod.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	w.serve(map[string]*v1.Pod{"p": pod})
	if o, err := w.podFor("e1", caches.PodKey(pod)); o == nil || err != nil {
		t.Fatalf("podFor = %v, %v; want the pod", o, err)
	}
	if taken := w.takenBytes(); taken < 60<<10 {
		t.Errorf("%d KiB are taken, want those of the pod", taken>>10)
	}
	w.room.connected("e1")
	if n := w.room.nodes["e1"]; n != nil {
		t.Errorf("after a new connection the room has %d pods, want none", len(n.pods))
	}
}
