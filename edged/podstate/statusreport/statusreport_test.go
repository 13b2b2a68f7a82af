package statusreport

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

func testPod(name string, uid types.UID) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: uid}}
}

func newReporter(store Store, stored func(error)) *Reporter {
	return New(Options{
		Store:        store,
		Stored:       stored,
		StaticStored: func() {},
		Busy:         func() bool { return false },
	})
}

// running returns a Reporter that runs until the end of the test, which is on a simulated clock.
func running(t *testing.T, store Store, stored func(error)) *Reporter {
	r := newReporter(store, stored)
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.Run(t.Context()) })
	t.Cleanup(wg.Wait)
	return r
}

// memory is a Store that may fail.
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

// want checks how many statuses are stored after something has happened.
func (m *memory) want(t *testing.T, what string, want int) {
	t.Helper()
	synctest.Wait()
	if got := m.count(); got != want {
		t.Fatalf("%s: %d statuses stored, want %d: %v", what, got, want, m.puts)
	}
}

func (m *memory) set(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = err
}

// TestUrgent: that a pod runs, is ready or has ended is stored at once; other changes wait for more.
func TestUrgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		r := running(t, m, func(error) {})
		a := testPod("a", "1")
		status := func(phase v1.PodPhase, ready v1.ConditionStatus, restarts int32) v1.PodStatus {
			return v1.PodStatus{Phase: phase, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: ready}},
				ContainerStatuses: []v1.ContainerStatus{{RestartCount: restarts}}}
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
				t.Errorf("%s, ready %s: told at once: %v, want %v", c.status.Phase, c.status.Conditions[0].Status, got,
					c.atOnce)
			}
			time.Sleep(startDebounce)
			synctest.Wait()
			if m.count() != before+1 {
				t.Errorf("%s: told %d times, want once", c.status.Phase, m.count()-before)
			}
		}
	})
}

// TestReporter: the newest status of each pod is stored once, and a store that fails loses nothing.
func TestReporter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		var healthy atomic.Bool
		r := running(t, m, func(err error) { healthy.Store(err == nil) })
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
		if healthy.Load() {
			t.Error("no error is told while the store fails, want one")
		}
		m.set(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if last := m.puts[len(m.puts)-1]; last != "report a Succeeded" || !healthy.Load() {
			t.Errorf("last stored %q, healthy %v; want a Succeeded, true", last, healthy.Load())
		}
	})
}

// slow is a Store that takes its time.
type slow struct {
	memory
	begun, goOn chan struct{}
}

func (s *slow) KeepStatus(ctx context.Context, pod *v1.Pod, status v1.PodStatus) error {
	close(s.begun)
	<-s.goOn
	return s.memory.KeepStatus(ctx, pod, status)
}

// TestDrop: when a pod is dropped, nothing of it is stored any more: anyone who then removes its row finds it.
func TestDrop(t *testing.T) {
	s := &slow{begun: make(chan struct{}), goOn: make(chan struct{})}
	r := newReporter(s, func(error) {})
	static := testPod("s", "2")
	static.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	r.PodStatus(static, v1.PodStatus{Phase: v1.PodRunning})
	stored, dropped := make(chan bool, 1), make(chan int, 1)
	go func() { stored <- r.FlushAll(t.Context()) }()
	<-s.begun
	r.PodStatus(static, v1.PodStatus{Phase: v1.PodFailed})
	go func() { r.Drop("2"); dropped <- s.count() }()
	time.Sleep(time.Millisecond) // lets a drop that does not wait for the store return before it; nothing depends on it
	close(s.goOn)
	if n := <-dropped; n != 1 || !<-stored {
		t.Errorf("dropped when %d statuses were stored, want the one under way", n)
	}
	if r.FlushAll(t.Context()); s.count() != 1 {
		t.Errorf("%d statuses were stored after their pod was dropped, want 1", s.count())
	}
	if len(r.pending)+len(r.reported) > 0 {
		t.Errorf("kept of a dropped pod: pending %v, reported %v; want nothing", r.pending, r.reported)
	}
}

// failing is a Store of which the first call fails, after a while.
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

// TestFlushFails: what another goroutine could not store is stored by Run, though nothing was pending when Run
// looked.
func TestFlushFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &failing{}
		r := newReporter(s, func(error) {})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		r.PodStatus(testPod("a", "1"), v1.PodStatus{Phase: v1.PodPending})
		wg.Go(func() { _ = r.Flush(ctx, "1") }) // its failure is what the test is about
		synctest.Wait()
		wg.Go(func() { _ = r.Run(ctx) })
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := fmt.Sprint(s.puts); got != "[report a Pending]" {
			t.Errorf("stored %s, want [report a Pending]", got)
		}
		cancel()
		wg.Wait()
	})
}

// busyStore is a Store that takes a second.
type busyStore struct {
	mu        sync.Mutex
	now, most int
	ofPod     map[types.UID]int
	last      map[types.UID]v1.PodPhase
	twice     bool
}

func (s *busyStore) ReportStatus(_ context.Context, pod *v1.Pod, status v1.PodStatus) error {
	s.mu.Lock()
	s.now++
	s.ofPod[pod.UID]++
	s.most, s.twice = max(s.most, s.now), s.twice || s.ofPod[pod.UID] > 1
	s.mu.Unlock()
	time.Sleep(time.Second)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now--
	s.ofPod[pod.UID]--
	s.last[pod.UID] = status.Phase
	return nil
}

func (s *busyStore) KeepStatus(ctx context.Context, pod *v1.Pod, status v1.PodStatus) error {
	return s.ReportStatus(ctx, pod, status)
}

// TestStatusesShareCommits: statuses of many pods are stored at a time, a bounded number; those of one pod one after
// another, the newest last.
func TestStatusesShareCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &busyStore{ofPod: map[types.UID]int{}, last: map[types.UID]v1.PodPhase{}}
		r := newReporter(s, func(error) {})
		const pods = 2*atOnce + 1
		report := func(phase v1.PodPhase) {
			for i := range pods {
				uid := types.UID(fmt.Sprint(i))
				r.PodStatus(testPod("p"+string(uid), uid), v1.PodStatus{Phase: phase})
			}
		}
		report(v1.PodPending)
		var flushes sync.WaitGroup
		flushes.Go(func() { r.FlushAll(t.Context()) })
		synctest.Wait()
		report(v1.PodRunning)
		began := time.Now()
		flushes.Go(func() { r.FlushAll(t.Context()) })
		flushes.Wait()
		if r.FlushAll(t.Context()); s.most < atOnce || s.most > 2*atOnce || s.twice {
			t.Errorf("%d statuses at a time, two of one pod: %v; want %d of each flush, and one of each pod", s.most,
				s.twice, atOnce)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("two flushes of %d statuses took %v", pods, took)
		}
		for uid, phase := range s.last {
			if phase != v1.PodRunning {
				t.Errorf("the last status of %s is %s, want %s", uid, phase, v1.PodRunning)
			}
		}
		if len(r.storing) != 0 || len(s.last) != pods {
			t.Errorf("%d pods are locked, %d were stored; want none and %d", len(r.storing), len(s.last), pods)
		}
	})
}

// TestStartingPod: a pod that starts soon is reported once, as Running. A slow one is reported as Pending after
// startDebounce, or progressDebounce while others start, and further progress after progressDebounce. A reason that
// keeps a pod from starting does not wait.
func TestStartingPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		r := running(t, m, func(error) {})
		status := func(phase v1.PodPhase, reason, ip string) v1.PodStatus {
			s := v1.PodStatus{Phase: phase, PodIP: ip, ContainerStatuses: []v1.ContainerStatus{{Name: "main"}}}
			if reason != "" {
				s.ContainerStatuses[0].State.Waiting = &v1.ContainerStateWaiting{Reason: reason}
			}
			return s
		}
		creating, pod := status(v1.PodPending, "ContainerCreating", ""), testPod("a", "1")
		r.PodStatus(pod, creating)
		time.Sleep(startDebounce / 2)
		r.PodStatus(pod, status(v1.PodPending, "PodInitializing", "10.0.0.1"))
		time.Sleep(startDebounce/2 - time.Millisecond)
		m.want(t, "it starts", 0)
		r.PodStatus(pod, status(v1.PodRunning, "", "10.0.0.1"))
		m.want(t, "it runs", 1)
		time.Sleep(2 * progressDebounce)
		m.want(t, "nothing else happens", 1)

		slow := testPod("b", "2")
		r.PodStatus(slow, creating)
		time.Sleep(startDebounce)
		m.want(t, "a slow pod is Pending", 2)
		r.PodStatus(slow, status(v1.PodPending, "ContainerCreating", "10.0.0.2"))
		time.Sleep(progressDebounce / 2)
		m.want(t, "the sandbox of a slow pod is ready", 2)
		other := testPod("c", "3")
		r.PodStatus(other, status(v1.PodRunning, "", ""))
		m.want(t, "another pod runs", 3)
		r.PodStatus(other, status(v1.PodRunning, "", "10.0.0.3"))
		time.Sleep(debounce)
		m.want(t, "another pod changes", 4)
		time.Sleep(progressDebounce/2 - debounce - time.Millisecond)
		m.want(t, "progress of a slow pod, too early", 4)
		time.Sleep(time.Millisecond)
		m.want(t, "progress of a slow pod", 5)
		r.PodStatus(slow, status(v1.PodPending, "ErrImagePull", "10.0.0.2"))
		time.Sleep(debounce)
		m.want(t, "its image is missing", 6)

		busy := true
		r.opts.Busy = func() bool { return busy } // it is called while r.mu is held
		waits := testPod("w", "6")
		r.PodStatus(waits, creating)
		time.Sleep(progressDebounce - time.Millisecond)
		m.want(t, "a pod waits for others, too early", 6)
		time.Sleep(time.Millisecond)
		m.want(t, "a pod waits for others", 7)
		busy = false

		stuck := testPod("d", "4")
		r.PodStatus(stuck, status(v1.PodPending, "ErrImagePull", ""))
		time.Sleep(debounce)
		m.want(t, "the image of a new pod is missing", 8)

		deleted := testPod("e", "5")
		deleted.DeletionTimestamp = new(metav1.Now())
		r.PodStatus(deleted, creating)
		time.Sleep(debounce)
		m.want(t, "a pod is deleted before it starts", 9)

		// kubectl debug waits for its container, also in a pod that does not start.
		debugged, waiting := testPod("g", "7"), status(v1.PodPending, "ContainerCreating", "")
		look := v1.ContainerStatus{Name: "look"}
		look.State.Waiting = &v1.ContainerStateWaiting{Reason: "ContainerCreating"}
		waiting.EphemeralContainerStatuses = []v1.ContainerStatus{look}
		r.PodStatus(debugged, waiting)
		time.Sleep(debounce)
		m.want(t, "an ephemeral container of a pod that starts", 10)
		look.State = v1.ContainerState{Running: &v1.ContainerStateRunning{}}
		waiting.EphemeralContainerStatuses = []v1.ContainerStatus{look}
		r.PodStatus(debugged, waiting)
		time.Sleep(debounce)
		m.want(t, "an ephemeral container runs", 11)
	})
}

// TestDeletedPod: a pod that is being deleted is reported once, when it has ended. What happens to it before is
// reported after progressDebounce, but for a probe that fails: others wait for that.
func TestDeletedPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		r := running(t, m, func(error) {})
		status := func(phase v1.PodPhase, ready v1.ConditionStatus, ended ...bool) v1.PodStatus {
			s := v1.PodStatus{Phase: phase, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: ready}}}
			for i, e := range ended {
				c := v1.ContainerStatus{Name: fmt.Sprint(i)}
				if c.State.Running = (&v1.ContainerStateRunning{}); e {
					c.State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}
				}
				s.ContainerStatuses = append(s.ContainerStatuses, c)
			}
			return s
		}
		running := status(v1.PodRunning, v1.ConditionTrue, false, false)
		deleted := func(name string, uid types.UID) *v1.Pod {
			pod := testPod(name, uid)
			r.PodStatus(pod, running)
			synctest.Wait()
			pod = pod.DeepCopy()
			pod.DeletionTimestamp = new(metav1.Now())
			pod.Generation = 2
			r.PodStatus(pod, running)
			return pod
		}

		pod := deleted("a", "1")
		time.Sleep(time.Second)
		r.PodStatus(pod, status(v1.PodRunning, v1.ConditionFalse, true, false))
		time.Sleep(time.Second)
		r.PodStatus(pod, status(v1.PodRunning, v1.ConditionFalse, true, true))
		time.Sleep(time.Second)
		m.want(t, "its containers have ended", 1)
		r.PodStatus(pod, status(v1.PodSucceeded, v1.ConditionFalse, true, true))
		m.want(t, "it has ended", 2)
		time.Sleep(2 * progressDebounce)
		m.want(t, "nothing else happens", 2)

		slow := deleted("b", "2")
		time.Sleep(progressDebounce - time.Second)
		r.PodStatus(slow, status(v1.PodRunning, v1.ConditionFalse, true, false))
		time.Sleep(time.Second - time.Millisecond)
		m.want(t, "a container of a slow pod has ended, too early", 3)
		time.Sleep(time.Millisecond)
		m.want(t, "a container of a slow pod has ended", 4)

		probed := deleted("c", "3")
		r.PodStatus(probed, status(v1.PodRunning, v1.ConditionFalse, false, false))
		m.want(t, "a probe fails", 6)
	})
}
