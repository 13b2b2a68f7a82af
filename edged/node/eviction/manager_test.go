package eviction

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
)

// fake is a node of 1000 units of everything, with pods that use some.
type fake struct {
	mu      sync.Mutex
	pods    []PodUsage
	garbage int64 // of the disk
	other   int64 // memory that no pod uses
	pids    int64 // process IDs that are used
	// hangs are the signals for which no pod can be measured.
	hangs   []Signal
	failing error
	looks   int
	log     []string
	ending  time.Duration // how long a pod takes to end
	// measuring is how long it takes to measure what pods have on the disk.
	measuring time.Duration
	ends      map[*v1.Pod]bool
}

func (f *fake) node(context.Context) (Observations, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks++
	if f.failing != nil {
		return nil, f.failing
	}
	memory, disk := f.other, f.garbage
	for _, p := range f.pods {
		memory += p.Memory
		disk += p.Logs.Bytes
	}
	return Observations{
		Memory: {1000 - memory, 1000}, NodeFS: {1000 - disk, 1000}, PIDs: {1000 - f.pids, 1000},
	}, nil
}

func (f *fake) list(ctx context.Context, s Signal) ([]PodUsage, Layout, error) {
	if s.Condition() == v1.NodeDiskPressure && f.measuring > 0 {
		select {
		case <-time.After(f.measuring):
		case <-ctx.Done():
			return nil, Layout{}, ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.Contains(f.hangs, s) {
		return nil, Layout{}, errors.New("the runtime does not answer")
	}
	return slices.DeleteFunc(slices.Clone(f.pods), func(u PodUsage) bool { return f.ends[u.Pod] }), Layout{}, nil
}

func (f *fake) say(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, fmt.Sprintf(format, args...))
}

func (f *fake) calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	log := f.log
	f.log = nil
	return log
}

func (f *fake) evict(pod *v1.Pod, _ string, _ map[string]string, grace int64) <-chan struct{} {
	f.say("%s ends within %d", pod.Name, grace)
	f.set(func() {
		if f.ends == nil {
			f.ends = map[*v1.Pod]bool{}
		}
		f.ends[pod] = true
	})
	done := make(chan struct{})
	go func() {
		time.Sleep(f.ending)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.pods = slices.DeleteFunc(f.pods, func(u PodUsage) bool { return u.Pod == pod })
		close(done)
	}()
	return done
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// started runs a manager until the test ends.
func started(t *testing.T, f *fake, settings Settings) *Manager {
	thresholds, err := Parse(settings)
	if err != nil {
		t.Fatal(err)
	}
	m := New(Options{
		Config: Config{Thresholds: thresholds, Transition: time.Minute, MaxPodGrace: 17},
		Node:   f.node, Pods: f.list, Evict: f.evict,
		FreeDisk: func(ctx context.Context, s Signal, enough func(context.Context) bool) error {
			f.set(func() { f.garbage = 0 })
			f.say("garbage removed for %s, enough: %v", s, enough(ctx))
			return nil
		},
		Changed: func(kinds []v1.NodeConditionType, _ []Threshold, _ Observations) { f.say("%v", kinds) },
		Acting:  func(name v1.ResourceName) { f.say("short of %s", name) },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return m
}

func expect(t *testing.T, f *fake, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, f.calls()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestEndsUntilThereIsEnough: pods go one after another, in order, and no more of them than have to.
func TestEndsUntilThereIsEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{ending: 3 * time.Second, pods: []PodUsage{
			{Pod: named("a", 0), Memory: 200}, {Pod: named("b", 0), Memory: 300}, {Pod: named("c", 0), Memory: 100},
			{Pod: named("d", 0, "memory=400"), Memory: 350},
		}}
		m := started(t, f, Settings{Hard: map[string]string{"memory.available": "400"}})
		time.Sleep(30 * time.Second)
		expect(t, f, "[MemoryPressure]", "short of memory", "b ends within 1", "short of memory", "a ends within 1")
		if got := names(f.pods); got != "c d" {
			t.Errorf("%s are left, want c d", got)
		}
		if why := m.Admit(named("new", 0)); why == nil {
			t.Error("Admit(a BestEffort pod) right after an eviction = nil, want a reason")
		}
		time.Sleep(time.Minute)
		expect(t, f, "[]")
		if why := m.Admit(named("new", 0)); why != nil {
			t.Errorf("Admit = %+v, want nil", why)
		}
		if got := counted(t, m); got != "eviction_signal=memory.available 2" {
			t.Errorf("metrics: %s, want eviction_signal=memory.available 2", got)
		}
	})
}

// counted is what the metrics say of evictions.
func counted(t *testing.T, m *Manager) string {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range families {
		for _, c := range f.GetMetric() {
			out = append(out, fmt.Sprintf("%s=%s %v", c.GetLabel()[0].GetName(), c.GetLabel()[0].GetValue(),
				c.GetCounter().GetValue()))
		}
	}
	return strings.Join(out, "; ")
}

// TestGarbageFirst: no pod goes for the disk where removing garbage is enough.
func TestGarbageFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{garbage: 500, pods: []PodUsage{{Pod: named("a", 0), Logs: DiskUse{Bytes: 450}}}}
		started(t, f, Settings{Hard: map[string]string{"nodefs.available": "10%"}})
		time.Sleep(30 * time.Second)
		expect(t, f, "[DiskPressure]", "short of ephemeral-storage",
			"garbage removed for nodefs.available, enough: true")
		f.set(func() { f.pods[0].Logs.Bytes = 950 })
		time.Sleep(30 * time.Second)
		expect(t, f, "short of ephemeral-storage", "garbage removed for nodefs.available, enough: false",
			"a ends within 1")
	})
}

// TestPoke: what the kernel says is looked at at once, and an idle node is looked at every 10 seconds.
func TestPoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{pods: []PodUsage{{Pod: named("a", 0), Memory: 100}}}
		m := started(t, f, Settings{Hard: map[string]string{"memory.available": "400"}})
		time.Sleep(59 * time.Second)
		expect(t, f, "[]")
		f.set(func() {
			if f.looks != 6 {
				t.Errorf("%d looks in a minute, want 6", f.looks)
			}
			f.pods[0].Memory = 900
		})
		began := time.Now()
		m.Notify()
		synctest.Wait()
		expect(t, f, "[MemoryPressure]", "short of memory", "a ends within 1")
		if took := time.Since(began); took > 0 {
			t.Errorf("evicted after %v, want at once", took)
		}
		// What is read may be a moment old: it is looked at once more, soon.
		time.Sleep(time.Minute + 30*time.Second)
		expect(t, f, "[]")
		m.Notify()
		synctest.Wait()
		f.set(func() { f.pods = append(f.pods, PodUsage{Pod: named("b", 0), Memory: 900}) })
		time.Sleep(2 * time.Second)
		expect(t, f, "[MemoryPressure]", "short of memory", "b ends within 1")
	})
}

// TestSoft: a soft threshold waits for its grace period, and then the pod has time to end.
func TestSoft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{pods: []PodUsage{{Pod: named("a", 0), Memory: 700}}}
		started(t, f, Settings{
			Soft: map[string]string{"memory.available": "400"}, SoftGrace: map[string]string{"memory.available": "45s"},
		})
		time.Sleep(44 * time.Second)
		expect(t, f, "[MemoryPressure]")
		time.Sleep(2 * time.Second)
		expect(t, f, "short of memory", "a ends within 17")
		own := named("own", 0)
		own.Spec.TerminationGracePeriodSeconds = new(int64(5))
		f.set(func() { f.pods = append(f.pods, PodUsage{Pod: own, Memory: 800}) })
		time.Sleep(time.Minute)
		expect(t, f, "short of memory", "own ends within 5")
	})
}

// TestNothingToEnd: where only critical pods run the node goes on looking; a node that cannot be measured ends nothing.
func TestNothingToEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{other: 900, pods: []PodUsage{{Pod: named("critical", 2000000000), Memory: 50}}}
		m := started(t, f, Settings{Hard: map[string]string{"memory.available": "400"}})
		time.Sleep(3 * time.Second)
		expect(t, f, "[MemoryPressure]", "short of memory")
		f.set(func() {
			f.failing = errors.New("no /proc")
			f.pods = append(f.pods, PodUsage{Pod: named("a", 0), Memory: 10})
		})
		time.Sleep(time.Minute)
		f.calls()
		f.set(func() { f.failing = nil })
		m.Configure(Config{Thresholds: []Threshold{{Signal: Memory, Value: Value{Amount: 1}}}})
		time.Sleep(time.Second)
		expect(t, f, "[]")
		f.set(func() { f.other = 1000 })
		time.Sleep(11 * time.Second)
		expect(t, f, "[MemoryPressure]", "short of memory", "a ends within 1", "short of memory")
	})
}

// TestQuietInVain: a disk that nothing can be done about is not searched for garbage again and again.
func TestQuietInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{pods: []PodUsage{{Pod: named("critical", 2000000000), Logs: DiskUse{Bytes: 950}}}}
		m := started(t, f, Settings{Hard: map[string]string{"nodefs.available": "10%"}})
		for range 600 {
			time.Sleep(time.Second)
			m.Notify()
		}
		log := f.calls()
		if len(log) > 12 || log[1] != "short of ephemeral-storage" ||
			slices.Contains(log[2:], "short of ephemeral-storage") {
			t.Errorf("%d things were said in 10 minutes, want at most 12 and the shortage once: %q", len(log), log)
		}
		f.set(func() { f.pods = append(f.pods, PodUsage{Pod: named("a", 0), Logs: DiskUse{Bytes: 10}}) })
		time.Sleep(maxVain)
		if log = f.calls(); len(log) == 0 || !slices.Contains(log, "a ends within 1") {
			t.Errorf("a pod that came later: %q, want a to end within 1", log)
		}
	})
}

// TestPauseOfEachThreshold: while nothing can be done about one resource, pods go for another that gets short, at the
// next look, and the one that cannot be served is not tried more often.
func TestPauseOfEachThreshold(t *testing.T) {
	for name, c := range map[string]struct {
		hangs    Signal
		settings Settings
		used     func(*fake)
		short    string
	}{
		"disk": {
			NodeFS, Settings{Hard: map[string]string{"nodefs.available": "10%", "pid.available": "400"}},
			func(f *fake) { f.pods[0].Logs.Bytes = 950 }, "ephemeral-storage",
		},
		"memory": {
			Memory, Settings{Hard: map[string]string{"memory.available": "400", "pid.available": "400"}},
			func(f *fake) { f.other = 900 }, "memory",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{hangs: []Signal{c.hangs}, pods: []PodUsage{{Pod: named("a", 0)}, {Pod: named("b", 0)}}}
				c.used(f)
				started(t, f, c.settings)
				time.Sleep(20 * time.Minute) // long enough for the longest pause
				if log := f.calls(); !slices.Contains(log, "short of "+c.short) {
					t.Fatalf("said %q, want short of %s", log, c.short)
				}
				f.set(func() { f.pids = 900 })
				time.Sleep(Period + time.Second)
				if log := f.calls(); !slices.Contains(log, "short of pids") ||
					!slices.ContainsFunc(log, func(s string) bool { return strings.HasSuffix(s, " ends within 1") }) {
					t.Errorf("%v after process IDs got short: %q, want a pod ended", Period, log)
				}
			})
		})
	}
}

// TestSlowEnd: a pod that does not end keeps no other from ending.
func TestSlowEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{
			ending: 10 * time.Minute, pods: []PodUsage{
				{Pod: named("a", 0), Memory: 500}, {Pod: named("b", 0), Memory: 450},
			},
		}
		started(t, f, Settings{Hard: map[string]string{"memory.available": "400"}})
		time.Sleep(35 * time.Second)
		expect(t, f, "[MemoryPressure]", "short of memory", "a ends within 1", "short of memory", "b ends within 1")
		time.Sleep(11 * time.Minute)
	})
}

// TestMemoryBesideTheDisk: while pods are measured for the disk, which may take long, memory is not forgotten; and a
// pod that was measured does not go when there is room again.
func TestMemoryBesideTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{
			pods: []PodUsage{
				{Pod: named("a", 0), Logs: DiskUse{Bytes: 450}}, {Pod: named("b", 0), Logs: DiskUse{Bytes: 500}},
			},
		}
		f.measuring = time.Hour
		started(t, f, Settings{Hard: map[string]string{"nodefs.available": "10%", "memory.available": "400"}})
		time.Sleep(time.Minute)
		expect(t, f, "[DiskPressure]", "short of ephemeral-storage",
			"garbage removed for nodefs.available, enough: false")
		f.set(func() { f.pods[0].Memory = 900 })
		time.Sleep(15 * time.Second)
		expect(t, f, "[DiskPressure MemoryPressure]", "short of memory", "a ends within 1")
		time.Sleep(2 * time.Hour)
		expect(t, f, "[]") // b is not measured any more: there is room
		f.set(func() { f.pods[0].Logs.Bytes = 950 })
		time.Sleep(2 * time.Hour)
		expect(t, f, "[DiskPressure]", "short of ephemeral-storage",
			"garbage removed for nodefs.available, enough: false", "b ends within 1", "[]")
	})
}
