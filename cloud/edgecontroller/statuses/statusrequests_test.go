package statuses

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// runningPod returns a pod whose node has reported that it runs.
func runningPod(node, name, version string) *v1.Pod {
	p := fakes.WasReady(fakes.MarkedPod(node, name))
	p.ResourceVersion = version
	return p
}

// asked returns the requests to nodes since the last call.
func (w *fixture) asked() []string {
	w.hub.Mu.Lock()
	defer w.hub.Mu.Unlock()
	out := w.hub.Asked
	w.hub.Asked = nil
	return out
}

// changed puts a pod into the cache, and delivers the event.
func (w *fixture) changed(now *v1.Pod) {
	w.t.Helper()
	old := w.caches.Pod(now.Namespace, now.Name)
	w.add(now)
	w.podEvent(old, now)
}

// overwritten returns a pod with the status of another writer.
func overwritten(pod *v1.Pod, version string) *v1.Pod {
	out := pod.DeepCopy()
	out.ResourceVersion, out.Status.Message = version, "somebody"
	return out
}

// startStatuses returns a fixture that works on its status requests until the test ends, with a connected node e1.
func startStatuses(t *testing.T, pods ...*v1.Pod) *fixture {
	w := newFixture(t)
	w.add(fakes.ReadyNode("e1", v1.ConditionTrue))
	for _, pod := range pods {
		w.add(pod)
	}
	var workers sync.WaitGroup
	w.statusRequests.Run(t.Context(), workers.Go)
	t.Cleanup(workers.Wait)
	w.Connected(t.Context(), "e1", "edgecore/websocket")
	return w
}

// inventory reports pods as they are.
func (w *fixture) inventory(pods ...*v1.Pod) {
	w.t.Helper()
	var held []wire.Held
	for _, pod := range pods {
		held = append(held, fakes.HeldStatus(pod, fakes.HashOf(w.t, pod)))
	}
	w.Inventoried(w.t.Context(), "e1", held)
}

// reports has e1 report a pod, which the API server stores as it is given, in a version.
func (w *fixture) reports(pod *v1.Pod, version string) {
	w.t.Helper()
	stored := pod.DeepCopy()
	stored.ResourceVersion = version
	w.reported("e1", stored)
}

const askA = "e1 ns/pod/a uid-a"

// TestStatusRequested: a status that another writer has changed is requested once it has differed for a moment; what
// agrees, or may be out of date, is not.
func TestStatusRequested(t *testing.T) {
	a := runningPod("e1", "a", "5")
	unready := fakes.MarkedPod("e1", "a")
	unready.ResourceVersion = "6"
	again := runningPod("e1", "a", "8")
	for name, tc := range map[string]struct {
		pod  *v1.Pod
		do   func(w *fixture)
		want []string
	}{
		"overwritten": {a, func(w *fixture) {
			w.inventory(a)
			w.changed(overwritten(a, "6"))
		}, []string{askA}},
		"after a report": {a, func(w *fixture) {
			w.inventory()
			w.reports(a, "6")
			w.changed(overwritten(a, "7"))
		}, []string{askA}},
		"before the answer": {a, func(w *fixture) {
			w.inventory()
			w.changed(overwritten(a, "7"))
			w.reports(a, "6")
		}, []string{askA}},
		"before the inventory": {a, func(w *fixture) { // which was made before the report
			w.reports(again, "5")
			w.inventory(overwritten(a, ""))
			w.changed(overwritten(a, "6"))
		}, []string{askA}},
		"during the inventory": {a, func(w *fixture) {
			w.add(overwritten(a, "6"))
			hash, version := fakes.HashOf(w.t, a), versionOf(a)
			last, _ := newLastStatus(hash, version)
			w.statuses.Inventoried("e1", map[types.UID]bool{}, map[types.UID]lastStatus{a.UID: last})
			w.Inventoried(w.t.Context(), "e1", nil)
		}, []string{askA}},
		"twice": {a, func(w *fixture) {
			w.inventory(a)
			w.changed(overwritten(a, "6"))
			w.changed(again)
		}, nil},
		"its own report": {a, func(w *fixture) {
			w.inventory(a)
			w.reports(overwritten(a, ""), "6")
			w.changed(overwritten(a, "6"))
		}, nil},
		"its own report, later": {a, func(w *fixture) {
			w.inventory(a)
			w.changed(overwritten(a, "6"))
			w.reports(overwritten(a, ""), "6")
		}, nil},
		"cache is behind": {a, func(w *fixture) {
			w.inventory(a)
			w.reports(again, "8")
			w.changed(overwritten(a, "6"))
		}, nil},
		"no inventory": {a, func(w *fixture) {
			w.reports(a, "5")
			w.changed(overwritten(a, "6"))
		}, nil},
		"newer one waits": {a, func(w *fixture) {
			w.Inventoried(w.t.Context(), "e1", []wire.Held{fakes.HeldStatus(a, wire.StatusPending)})
			w.changed(overwritten(a, "6"))
		}, nil},
		"no status": {a, func(w *fixture) {
			w.inventory()
			w.changed(overwritten(a, "6"))
		}, nil},
		"Ready undone": {a, func(w *fixture) {
			w.inventory(a)
			w.changed(unready)
		}, nil},
		"KubeEdge's": {a, func(w *fixture) {
			w.Connected(w.t.Context(), "e1", "websocket")
			w.reports(a, "5")
			w.changed(overwritten(a, "6"))
		}, nil},
		"not connected": {a, func(w *fixture) {
			w.inventory(a)
			w.Disconnected("e1", "x")
			w.changed(overwritten(a, "6"))
		}, nil},
		"cannot be asked": {a, func(w *fixture) {
			w.inventory(a)
			w.hub.Deaf = true
			w.changed(overwritten(a, "6"))
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := startStatuses(t, tc.pod)
				tc.do(w)
				synctest.Wait()
				if early := w.asked(); early != nil {
					t.Errorf("asked at once for %v, want nothing", early)
				}
				time.Sleep(2 * statusDelay) // of the bubble
				synctest.Wait()
				if diff := cmp.Diff(tc.want, w.asked()); diff != "" {
					t.Errorf("asked (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestStatusFight: a writer that overwrites a pod's status after each report of its node is answered ever more seldom;
// when it has stopped for long enough, at once again. A lost request is repeated.
func TestStatusFight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := runningPod("e1", "a", "5")
		w := startStatuses(t, a)
		w.inventory(a)
		version, began := 5, time.Now()
		next := func() string { version++; return strconv.Itoa(version) }
		var at []time.Duration
		for range 2 * 60 * 60 { // two hours
			w.changed(overwritten(a, next()))
			time.Sleep(time.Second)
			synctest.Wait()
			if w.asked() != nil {
				at = append(at, time.Since(began))
				w.reports(a, next())
				w.changed(runningPod("e1", "a", strconv.Itoa(version)))
			}
		}
		if diff := cmp.Diff([]time.Duration{1, 6, 16, 36, 76, 156, 316, 616, 916}, seconds(at)[:9]); diff != "" {
			t.Errorf("seconds of the first requests (-want +got):\n%s", diff)
		}
		if most := int(2*time.Hour/statusRetryMax) + 6; len(at) > most {
			t.Errorf("%d requests in two hours, want at most %d", len(at), most)
		}
		w.changed(runningPod("e1", "a", next()))
		time.Sleep(statusRetryReset + statusRetryMax)
		w.asked()
		w.changed(overwritten(a, next()))
		began, at = time.Now(), nil
		for range 20 { // nobody reports
			time.Sleep(time.Second)
			synctest.Wait()
			if w.asked() != nil {
				at = append(at, time.Since(began))
			}
		}
		if diff := cmp.Diff([]time.Duration{1, 6, 16}, seconds(at)); diff != "" {
			t.Errorf("seconds of the requests after peace (-want +got):\n%s", diff)
		}
	})
}

func seconds(times []time.Duration) []time.Duration {
	out := make([]time.Duration, len(times))
	for i, t := range times {
		out[i] = t / time.Second
	}
	return out
}

// TestStatusRequestRate: many pods at once do not flood their node; each has its turn.
func TestStatusRequestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pods []*v1.Pod
		for i := range 110 {
			pods = append(pods, runningPod("e1", fmt.Sprintf("p%d", i), "5"))
		}
		w := startStatuses(t, pods...)
		w.inventory(pods...)
		for _, pod := range pods {
			w.changed(overwritten(pod, "6"))
		}
		counted := map[string]bool{}
		for second := range 30 {
			time.Sleep(time.Second)
			synctest.Wait()
			asked := w.asked()
			if most := statusRequestBurst + statusRequestRate; second == 0 && len(asked) > most ||
				second > 1 && len(asked) > statusRequestRate+1 {
				t.Errorf("%d requests in second %d, want at most %d at first, then %d", len(asked), second, most,
					statusRequestRate)
			}
			for _, what := range asked {
				counted[what] = true
				name := strings.TrimPrefix(strings.Fields(what)[1], "ns/pod/")
				w.reports(runningPod("e1", name, ""), "7")
			}
		}
		if len(counted) != len(pods) {
			t.Errorf("%d pods were requested, want all %d", len(counted), len(pods))
		}
	})
}

// TestStatusesForgotten: nothing is kept of pods that are gone, and of nodes that are not connected.
func TestStatusesForgotten(t *testing.T) {
	w := newFixture(t)
	a, b := runningPod("e1", "a", "5"), runningPod("e1", "b", "5")
	w.add(a, b)
	w.Connected(t.Context(), "e1", "edgecore/websocket")
	w.inventory(a, b)
	for _, pod := range []*v1.Pod{a, b} {
		if _, ask := w.statuses.request("e1", pod.UID, time.Now()); !ask {
			t.Errorf("request for %s = false, want true", pod.Name)
		}
	}
	w.podEvent(a, nil)
	another := runningPod("e1", "b", "9")
	another.UID = "another"
	w.podEvent(b, another)
	if n := w.statuses.nodes["e1"]; len(n.last)+len(n.pending)+len(n.requests.pods) != 0 {
		t.Errorf("kept of pods that are gone: %v %v %v, want nothing", n.last, n.pending, n.requests.pods)
	}
	w.Disconnected("e1", "x")
	if n := len(w.statuses.nodes); n != 0 {
		t.Errorf("%d nodes are kept, want 0", n)
	}
}

// TestStatusesMemory: what is kept for a node with 30 pods is small beside the 60 KB that a node may cost.
func TestStatusesMemory(t *testing.T) {
	const nodes, pods, most = 1000, 30, 6 << 10
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	s := New()
	for n := range nodes {
		node := fmt.Sprintf("edge-%d", n)
		s.Connected(node, true)
		s.Inventoried(node, map[types.UID]bool{}, map[types.UID]lastStatus{})
		for i := range pods {
			uid := fmt.Sprintf("0e0ff2de-1b9f-4e0c-9fd7-%012d", i)
			s.Reported(node, types.UID(uid), lastStatus{version: 1})
		}
	}
	each := (heap() - before) / nodes
	t.Logf("%d bytes for a node with %d pods", each, pods)
	if each > most {
		t.Errorf("a node with %d pods = %d bytes, want at most %d", pods, each, most)
	}
	runtime.KeepAlive(s)
}
