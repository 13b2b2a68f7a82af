package nodes

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

// patches runs the queue of tolerations against an API server that applies what it is asked to, as often as changes
// come, and notes when each pod was patched.
type patches struct {
	w     *fixture
	began time.Time
	at    map[string]time.Duration
}

func runTolerations(w *fixture) *patches {
	p := &patches{w: w, began: time.Now(), at: map[string]time.Duration{}}
	w.api.Answer(func(c fakes.Call) (int, any) {
		var name string
		if n, err := fmt.Sscanf(c.Path, "/api/v1/namespaces/ns/pods/%s", &name); n != 1 || err != nil {
			return fakes.NotFound(c.Path)
		}
		pod := w.caches.Pod("ns", name).DeepCopy()
		var patch v1.Pod
		if err := json.Unmarshal([]byte(c.Body), &patch); err != nil {
			return http.StatusBadRequest, err.Error()
		}
		pod.Spec.Tolerations = patch.Spec.Tolerations
		pod.Generation++
		w.add(pod)
		p.at[name] = time.Since(p.began).Round(time.Millisecond)
		pod.Kind, pod.APIVersion = "Pod", "v1"
		return http.StatusOK, pod
	})
	return p
}

// until lets time of the bubble pass.
func (p *patches) until(end time.Duration) {
	for time.Since(p.began) < end {
		time.Sleep(time.Second)
		synctest.Wait()
		for p.w.tolerations.Keys.Len() > 0 {
			p.w.tolerations.Next(p.w.t.Context())
		}
	}
}

func boundNow(node, name string, seconds int64) *v1.Pod {
	p := fakes.Pod(node, "ns", name)
	p.CreationTimestamp, p.Generation = metav1.Now(), 1
	p.Spec.Tolerations = fakes.Limited(seconds)
	return p
}

// TestGenerationStaysAtStart: a pod's tolerations change neither with its binding nor with its start, but long before
// it could be evicted; a pod that has ended by then is never changed.
func TestGenerationStaysAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, noAddress)
		p := runTolerations(w)
		w.add(fakes.ReadyNode("e1", v1.ConditionTrue))
		w.Connected(t.Context(), "e1", "edgecore/websocket")
		add := func(pod *v1.Pod) {
			old := w.caches.Pod(pod.Namespace, pod.Name)
			w.add(pod)
			w.podEvent(old, pod)
		}
		phase := func(name string, phase v1.PodPhase) {
			pod := w.caches.Pod("ns", name).DeepCopy()
			pod.Status.Phase = phase
			add(pod)
		}
		for _, name := range []string{"runs", "pulls", "job", "replaced"} {
			add(boundNow("e1", name, 300))
		}
		p.until(10 * time.Second)
		phase("runs", v1.PodRunning)
		phase("job", v1.PodRunning)
		p.until(60 * time.Second)
		if len(p.at) != 0 {
			t.Errorf("patched within a minute of the binding: %v, want none", p.at)
		}
		phase("job", v1.PodSucceeded)
		again := boundNow("e1", "replaced", 300)
		again.UID = "another"
		add(again)
		p.until(69 * time.Second)
		if pod := w.caches.Pod("ns", "runs"); pod.Generation != 1 {
			t.Errorf("a minute after it started a pod has generation %d, want 1", pod.Generation)
		}
		p.until(10 * time.Minute)
		within := func(name string, from, to time.Duration) {
			t.Helper()
			if at, ok := p.at[name]; !ok || at < from || at > to {
				t.Errorf("pod %s is patched after %v (%v), want from %v to %v", name, at, ok, from, to)
			}
		}
		within("runs", 70*time.Second, 131*time.Second)
		within("pulls", 120*time.Second, 181*time.Second)
		within("replaced", 180*time.Second, 241*time.Second)
		if at, ok := p.at["job"]; ok {
			t.Errorf("a pod that had ended is patched after %v, want never", at)
		}
	})
}

// TestUnreachableNodesFirst: when a node stops being ready, when it has the taint, and for pods that cannot wait, the
// tolerations change at once.
func TestUnreachableNodesFirst(t *testing.T) {
	ready, lost := fakes.ReadyNode("e1", v1.ConditionTrue), fakes.ReadyNode("e1", v1.ConditionUnknown)
	tainted := fakes.ReadyNode("e1", v1.ConditionTrue)
	tainted.Spec.Taints = []v1.Taint{{Key: v1.TaintNodeUnreachable, Effect: v1.TaintEffectNoExecute}}
	for name, tc := range map[string]struct {
		seconds int64
		now     *v1.Node
		at      time.Duration // 0: not within 50 s
	}{
		"stays ready":        {300, ready, 0},
		"not ready":          {300, lost, 31 * time.Second},
		"tainted":            {300, tainted, 31 * time.Second},
		"no time, and ready": {0, ready, time.Second},
		"short time":         {10, ready, 6 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t, noAddress)
				p := runTolerations(w)
				w.add(ready)
				w.Connected(t.Context(), "e1", "edgecore/websocket")
				pod := boundNow("e1", "a", tc.seconds)
				w.add(pod)
				w.podEvent(nil, pod)
				p.until(30 * time.Second)
				w.add(tc.now)
				w.nodeEvent(ready, tc.now)
				p.until(50 * time.Second)
				got, ok := p.at["a"]
				switch {
				case tc.at == 0 && ok:
					t.Errorf("patched after %v, want not within 50 s", got)
				case tc.at != 0 && (!ok || got > tc.at):
					t.Errorf("patched after %v (%v), want at the latest after %v", got, ok, tc.at)
				}
			})
		})
	}
}
