package edgecontroller

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
)

func TestTolerated(t *testing.T) {
	both := func(notReady, unreachable int64) []v1.Toleration {
		out := limited(notReady)
		out[1].TolerationSeconds = &unreachable
		return out
	}
	forever, _ := unlimited(nil)
	for name, tc := range map[string]struct {
		have []v1.Toleration
		want time.Duration
	}{
		"the defaults": {limited(300), 300 * time.Second},
		"the shorter":  {both(40, 10), 10 * time.Second},
		"longer":       {limited(3600), 300 * time.Second},
		"the longest":  {limited(math.MaxInt64), 300 * time.Second},
		"negative":     {limited(-1), 0},
		"none":         {nil, 0},
		"one of two":   {limited(300)[:1], 0},
		"for ever":     {forever, 300 * time.Second},
		"one for ever": {[]v1.Toleration{forever[0], limited(20)[1]}, 20 * time.Second},
		"listed twice": {append(limited(300), limited(5)...), 5 * time.Second},
		"of every taint": {
			[]v1.Toleration{{Operator: v1.TolerationOpExists, TolerationSeconds: new(int64(7))}}, 7 * time.Second,
		},
	} {
		if got := tolerated(tc.have); got != tc.want {
			t.Errorf("%s: tolerated = %v, want %v", name, got, tc.want)
		}
	}
}

// TestPatchDelay: the times of the table at longestTolerance, without the spread.
func TestPatchDelay(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	scheduled := func(ago time.Duration) func(*v1.Pod) {
		return func(p *v1.Pod) {
			c := fakes.Condition(v1.PodScheduled, v1.ConditionTrue)
			c.LastTransitionTime = metav1.NewTime(now.Add(-ago))
			p.Status.Conditions = append(p.Status.Conditions, c)
		}
	}
	created := func(ago time.Duration) func(*v1.Pod) {
		return func(p *v1.Pod) { p.CreationTimestamp = metav1.NewTime(now.Add(-ago)) }
	}
	running := func(p *v1.Pod) { p.Status.Phase = v1.PodRunning }
	short := func(seconds int64) func(*v1.Pod) {
		return func(p *v1.Pod) { p.Spec.Tolerations = limited(seconds) }
	}
	all := func(changes ...func(*v1.Pod)) func(*v1.Pod) {
		return func(p *v1.Pod) {
			for _, change := range changes {
				change(p)
			}
		}
	}
	for name, tc := range map[string]struct {
		change func(*v1.Pod)
		want   time.Duration
	}{
		"just bound":               {scheduled(0), 120 * time.Second},
		"created for its node":     {created(20 * time.Second), 100 * time.Second},
		"waited for a node":        {all(created(time.Hour), scheduled(0)), 120 * time.Second},
		"bound before":             {scheduled(time.Hour), 0},
		"running":                  {all(scheduled(0), running), 60 * time.Second},
		"running at last":          {all(scheduled(110*time.Second), running), 10 * time.Second},
		"a clock that is ahead":    {all(scheduled(-time.Hour)), 120 * time.Second},
		"ahead, and running":       {all(scheduled(-time.Hour), running), 60 * time.Second},
		"tolerates for 10 seconds": {all(short(10), scheduled(0)), 4 * time.Second},
		"10 seconds, running":      {all(short(10), scheduled(0), running), 2 * time.Second},
		"tolerates for no time":    {all(short(0), scheduled(0)), 0},
		"tolerates nothing":        {func(p *v1.Pod) { p.Spec.Tolerations = nil }, 0},
	} {
		pod := fakes.Pod("e1", "ns", "a")
		pod.Spec.Tolerations = limited(300)
		tc.change(pod)
		limit := tolerated(pod.Spec.Tolerations)
		got := patchDelay(pod, now) - spread(pod.UID, limit/shareSpread)
		if got != tc.want {
			t.Errorf("%s: delay %v, want %v", name, got, tc.want)
		}
	}
}

// TestSpread: pods that came together are patched in small batches.
func TestSpread(t *testing.T) {
	var each [6]int
	for i := range 600 {
		uid := types.UID(fmt.Sprintf("%08x-0000-4000-8000-000000000000", i))
		at := spread(uid, time.Minute)
		if at < 0 || at >= time.Minute || at != spread(uid, time.Minute) {
			t.Fatalf("spread(%s) = %v, then %v; want the same below a minute", uid, at, spread(uid, time.Minute))
		}
		each[at/(10*time.Second)]++
	}
	for i, n := range each {
		if n < 50 || n > 150 {
			t.Errorf("%d of 600 pods fall into part %d of 6, want about 100", n, i)
		}
	}
}

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
	p.Spec.Tolerations = limited(seconds)
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
