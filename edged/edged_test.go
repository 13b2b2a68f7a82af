package edged

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/admission"
	"github.com/edgecore-io/edgecore/edged/observed"
	"github.com/edgecore-io/edgecore/edged/source"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

func testPod(name string, uid types.UID) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: uid}}
}

func podNames(pods []*v1.Pod) string {
	var list []string
	for _, p := range pods {
		list = append(list, p.Name)
	}
	return strings.Join(list, " ")
}

func TestWanted(t *testing.T) {
	w := newWanted()
	a, b := testPod("a", "1"), testPod("b", "2")
	if added, removed := w.setStatic([]*v1.Pod{a, b}); podNames(added) != "a b" || len(removed) != 0 {
		t.Errorf("setStatic(a, b) = added %q, removed %q; want a and b added", podNames(added), podNames(removed))
	}
	if added, removed := w.setStatic([]*v1.Pod{a}); len(added) != 0 || podNames(removed) != "b" {
		t.Errorf("setStatic(a) = added %q, removed %q; want b removed", podNames(added), podNames(removed))
	}
	if added, _ := w.setStatic([]*v1.Pod{a, b}); podNames(added) != "b" {
		t.Errorf("setStatic(a, b) while b leaves = added %q, want \"b\"", podNames(added))
	}
	if w.put(testPod("stolen", "1"), false) {
		t.Error("put(a stored pod with the UID of a static one) = true, want false")
	}
	if restored, again := w.put(testPod("c", "3"), true), w.put(testPod("c", "3"), false); !restored || !again {
		t.Errorf("put(c) twice = %t, %t, want true, true", restored, again)
	}
	if got := w.all(); got[0].pod.Name != "c" || !got[0].restored {
		t.Errorf("all()[0] = %s, restored %t, want c, restored true", got[0].pod.Name, got[0].restored)
	}
	w.judge("3", &observed.Reason{Reason: "OutOfcpu"})
	if got, ok := w.get("3"); !ok || got.admitted || got.rejected.Reason != "OutOfcpu" {
		t.Errorf("get(3) = %+v, %v; want a pod rejected for OutOfcpu", got, ok)
	}
	w.forget("3")
	if _, ok := w.get("3"); !ok {
		t.Errorf("get(3) after forget(3) of a desired pod = %t, want true", ok)
	}
	if first, second := w.leave("3"), w.leave("3"); first == nil || second != nil {
		t.Errorf("leave(3) twice = %v, %v, want a pod, nil", first, second)
	}
	w.forget("3")
	if _, ok := w.get("3"); ok {
		t.Errorf("get(3) after leave(3) and forget(3) = %t, want false", ok)
	}
}

// memory is a statusStore that may fail.
type memory struct {
	mu   sync.Mutex
	fail error
	puts []string
}

func (m *memory) put(kind string, pod *v1.Pod, s v1.PodStatus) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	m.puts = append(m.puts, kind+" "+pod.Name+" "+string(s.Phase))
	return nil
}

func (m *memory) ReportStatus(_ context.Context, pod *v1.Pod, s v1.PodStatus) error {
	return m.put("report", pod, s)
}

func (m *memory) KeepStatus(_ context.Context, pod *v1.Pod, s v1.PodStatus) error {
	return m.put("keep", pod, s)
}

func (m *memory) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.puts)
}

func (m *memory) set(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = err
}

// TestReporterTellsMilestonesAtOnce: that a pod runs, is ready or has ended; what is between waits for more.
// TestSourceOfAPIPods: a pod of the API server that says that it is a static one is not taken for one.
func TestSourceOfAPIPods(t *testing.T) {
	created := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name:              "liar",
		UID:               "u",
		CreationTimestamp: created,
		Annotations:       map[string]string{source.AnnotationSource: "file", "own": "kept"},
	}}
	w := newWanted()
	w.put(pod, false)
	have, ok := w.get("u")
	if !ok {
		t.Fatal("the pod is not in the set, want it there")
	}
	want := map[string]string{source.AnnotationSource: "api", source.AnnotationSeen: "2026-01-02T03:04:05Z", "own": "kept"}
	if !maps.Equal(have.pod.Annotations, want) || isStatic(have.pod) || admission.Critical(have.pod) {
		t.Errorf("annotations = %v, static %v, critical %v; want %v, false, false",
			have.pod.Annotations, isStatic(have.pod), admission.Critical(have.pod), want)
	}
	if pod.Annotations[source.AnnotationSource] != "file" {
		t.Errorf("annotations of the pod that was handed over = %v, want them unchanged", pod.Annotations)
	}
}

func TestReporterTellsMilestonesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		r := newReporter(m, func(error) {})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { r.run(ctx) })
		a := testPod("a", "1")
		status := func(phase v1.PodPhase, ready v1.ConditionStatus, restarts int32) v1.PodStatus {
			return v1.PodStatus{Phase: phase, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: ready}}, ContainerStatuses: []v1.ContainerStatus{{RestartCount: restarts}}}
		}
		for _, c := range []struct {
			status v1.PodStatus
			atOnce bool
		}{
			{status(v1.PodPending, v1.ConditionFalse, 0), false}, {status(v1.PodRunning, v1.ConditionFalse, 0), true},
			{status(v1.PodRunning, v1.ConditionTrue, 0), true}, {status(v1.PodRunning, v1.ConditionTrue, 1), false},
			{status(v1.PodRunning, v1.ConditionFalse, 1), true}, {status(v1.PodFailed, v1.ConditionFalse, 1), true},
		} {
			before := m.count()
			r.PodStatus(a, c.status)
			synctest.Wait()
			if got := m.count() > before; got != c.atOnce {
				t.Errorf("%s, ready %s: told at once: %v, want %v", c.status.Phase, c.status.Conditions[0].Status, got, c.atOnce)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if m.count() != before+1 {
				t.Errorf("%s: told %d times, want once", c.status.Phase, m.count()-before)
			}
		}
		cancel()
		wg.Wait()
	})
}

// TestReporter: the newest status of each pod is stored once, and a store that fails loses nothing.
func TestReporter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		var health error
		r := newReporter(m, func(err error) { health = err })
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { r.run(ctx) })
		a := testPod("a", "1")
		for _, phase := range []v1.PodPhase{v1.PodPending, v1.PodRunning} {
			r.PodStatus(a, v1.PodStatus{Phase: phase})
		}
		static := testPod("s", "2")
		static.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
		r.PodStatus(static, v1.PodStatus{Phase: v1.PodFailed})
		time.Sleep(time.Second)
		synctest.Wait()
		got := fmt.Sprint(m.puts)
		if len(m.puts) != 2 || !strings.Contains(got, "report a Running") || !strings.Contains(got, "keep s Failed") {
			t.Errorf("stored %s, want a Running and s Failed", got)
		}
		m.set(errors.New("full"))
		r.PodStatus(a, v1.PodStatus{Phase: v1.PodSucceeded})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if health == nil {
			t.Error("health while the store fails = nil, want an error")
		}
		m.set(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if last := m.puts[len(m.puts)-1]; last != "report a Succeeded" || health != nil {
			t.Errorf("last stored %q, health %v; want a Succeeded and no error", last, health)
		}
		cancel()
		wg.Wait()
	})
}

// slow is a statusStore that takes its time.
type slow struct {
	memory
	begun, goOn chan struct{}
}

func (s *slow) KeepStatus(ctx context.Context, pod *v1.Pod, status v1.PodStatus) error {
	close(s.begun)
	<-s.goOn
	return s.memory.KeepStatus(ctx, pod, status)
}

// TestReporterDrops: when a pod is dropped, nothing of it is stored any more: whoever then removes its row finds it.
func TestReporterDrops(t *testing.T) {
	s := &slow{begun: make(chan struct{}), goOn: make(chan struct{})}
	r := newReporter(s, func(error) {})
	static := testPod("s", "2")
	static.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	r.PodStatus(static, v1.PodStatus{Phase: v1.PodRunning})
	stored, dropped := make(chan bool, 1), make(chan int, 1)
	go func() { stored <- r.sendAll(t.Context()) }()
	<-s.begun
	r.PodStatus(static, v1.PodStatus{Phase: v1.PodFailed})
	go func() { r.drop("2"); dropped <- s.count() }()
	time.Sleep(time.Millisecond) // lets a drop that does not wait for the store return before it; nothing depends on it
	close(s.goOn)
	if n := <-dropped; n != 1 || !<-stored {
		t.Errorf("dropped when %d statuses were stored, want the one under way", n)
	}
	if r.sendAll(t.Context()); s.count() != 1 {
		t.Errorf("%d statuses were stored after their pod was dropped, want 1", s.count())
	}
}

// failing is a statusStore of which the first call fails, after a while.
type failing struct {
	memory
	failed bool
}

func (s *failing) ReportStatus(ctx context.Context, pod *v1.Pod, status v1.PodStatus) error {
	if !s.failed {
		s.failed = true
		time.Sleep(time.Second)
		return errors.New("no")
	}
	return s.memory.ReportStatus(ctx, pod, status)
}

// TestReporterFlushFails: what another goroutine could not store is stored by run, though there was nothing to do when run
// looked.
func TestReporterFlushFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &failing{}
		r := newReporter(s, func(error) {})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		r.PodStatus(testPod("a", "1"), v1.PodStatus{Phase: v1.PodPending})
		wg.Go(func() { _ = r.flush(ctx, "1") }) // its failure is what the test is about
		synctest.Wait()
		wg.Go(func() { r.run(ctx) })
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := fmt.Sprint(s.puts); got != "[report a Pending]" {
			t.Errorf("stored %s, want [report a Pending]", got)
		}
		cancel()
		wg.Wait()
	})
}

func TestExpandPath(t *testing.T) {
	lookup := func(name string) (string, bool) {
		value, ok := map[string]string{"A": "v", "EMPTY": ""}[name]
		return value, ok
	}
	if got, err := expandPath("x/$(A)", lookup); err != nil || got != "x/v" {
		t.Errorf("expandPath(x/$(A)) = %q, %v; want x/v", got, err)
	}
	for text, want := range map[string]string{
		"x/$(B)": "missing value for B", "$(EMPTY)": "missing value for EMPTY", "$(EMPTY)/$(B)/$(A)/$(EMPTY)": "missing value for B, EMPTY",
	} {
		if got, err := expandPath(text, lookup); err == nil || err.Error() != want {
			t.Errorf("expandPath(%s): got %q, %v, want %q", text, got, err, want)
		}
	}
}
