package podworker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// script records the calls and answers as a test wants.
type script struct {
	mu        sync.Mutex
	calls     []string
	busy      map[types.UID]bool
	overlap   bool
	sync      func(ctx context.Context, pod *v1.Pod) SyncResult
	terminate func(ctx context.Context, end End) error
	ended     []End
}

func (s *script) enter(uid types.UID, what string) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, what)
	if s.busy == nil {
		s.busy = map[types.UID]bool{}
	}
	s.overlap = s.overlap || s.busy[uid]
	s.busy[uid] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.busy[uid] = false
	}
}

func (s *script) Sync(ctx context.Context, pod *v1.Pod) SyncResult {
	defer s.enter(pod.UID, "sync "+pod.Name)()
	if s.sync != nil {
		return s.sync(ctx, pod)
	}
	return SyncResult{}
}

func (s *script) Terminate(ctx context.Context, end End) error {
	defer s.enter(end.UID, "terminate")()
	if s.terminate != nil {
		return s.terminate(ctx, end)
	}
	return nil
}

func (s *script) Terminated(_ context.Context, end End) error {
	defer s.enter(end.UID, "terminated")()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = append(s.ended, end)
	return nil
}

func (s *script) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

func pod(name string, uid types.UID) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid}}
}

// run gives a test a pool on a fake clock, and ends it.
func run(t *testing.T, s *script, body func(p *Pool)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := New(ctx, Options{})
		p.SetSyncer(s)
		body(p)
		cancel()
		p.Wait()
		if s.overlap {
			t.Errorf("calls for one pod overlapped = %t, want false", s.overlap)
		}
	})
}

func expect(t *testing.T, s *script, want ...string) {
	t.Helper()
	synctest.Wait()
	if diff := cmp.Diff(want, s.seen()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// TestSettled: a pod that is settled is synced less and less often while nothing happens, and at once, and as often as
// before, when something does.
func TestSettled(t *testing.T) {
	var mu sync.Mutex
	var at []time.Time
	result := SyncResult{Settled: true}
	s := &script{sync: func(context.Context, *v1.Pod) SyncResult {
		mu.Lock()
		defer mu.Unlock()
		at = append(at, time.Now())
		return result
	}}
	answer := func(r SyncResult) {
		mu.Lock()
		defer mu.Unlock()
		result = r
	}
	// gaps returns the periods between syncs during a time, in whole resyncs: each is up to a half longer.
	gaps := func(d time.Duration) []int {
		synctest.Wait()
		mu.Lock()
		at = at[len(at)-1:]
		mu.Unlock()
		time.Sleep(d)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		var list []int
		for i := range len(at) - 1 {
			list = append(list, int(at[i+1].Sub(at[i])/defaultResync))
		}
		return list
	}
	between := func(gaps []int, least ...int) bool {
		return len(gaps) >= len(least) && slices.EqualFunc(gaps[:len(least)], least, func(got, want int) bool {
			return got >= want && 2*got <= 3*want
		})
	}
	run(t, s, func(p *Pool) {
		p.Update(pod("a", "u"), "")
		if got := gaps(2 * time.Hour); !between(got, 1, 2, 4, 8, 8, 8) {
			t.Errorf("a settled pod: gaps of %v resyncs, want 1, 2, 4, and 8 from then on, or up to a half longer", got)
		}
		p.Enqueue("u")
		if got := gaps(time.Hour); !between(got, 1, 2, 4, 8) {
			t.Errorf("after an Enqueue: gaps of %v resyncs, want them to begin with 1, 2, 4, 8 again", got)
		}
		answer(SyncResult{})
		p.Enqueue("u")
		if got := gaps(time.Hour); !between(got, 1, 1, 1, 1, 1, 1) {
			t.Errorf("a pod that is not settled: gaps of %v resyncs, want 1 each", got)
		}
		answer(SyncResult{Settled: true})
		time.Sleep(time.Hour)
		due := time.Now().Add(10 * time.Second)
		answer(SyncResult{Settled: true, By: due}) // a token is to be renewed
		p.Enqueue("u")
		synctest.Wait()
		answer(SyncResult{Settled: true})
		time.Sleep(time.Minute)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if !slices.ContainsFunc(at, due.Equal) {
			t.Errorf("synced at %v, want among them %v, as the sync before had asked", at[len(at)-2:], due)
		}
	})
}

func TestRemovedPodIsForgottenAfterCleanUp(t *testing.T) {
	s := &script{}
	run(t, s, func(p *Pool) {
		p.Update(pod("a", "1"), "")
		expect(t, s, "sync a")
		p.Remove("1")
		expect(t, s, "sync a", "terminate", "terminated")
		if p.Knows("1") {
			t.Error("Knows(1) after a removal = true, want false")
		}
		if !s.ended[0].Removed || s.ended[0].Pod == nil {
			t.Errorf("end = %+v, want a removed pod", s.ended[0])
		}
	})
}

func TestOrphanIsTerminatedWithoutAPod(t *testing.T) {
	s := &script{}
	run(t, s, func(p *Pool) {
		p.Remove("1")
		expect(t, s, "terminate", "terminated")
		if e := s.ended[0]; e.Pod != nil || e.Grace != nil {
			t.Errorf("end = %+v, want no pod and no grace but its own", e)
		}
	})
}

func TestFinishedPodStaysUntilRemoved(t *testing.T) {
	s := &script{sync: func(context.Context, *v1.Pod) SyncResult { return SyncResult{Finished: true} }}
	run(t, s, func(p *Pool) {
		p.Update(pod("a", "1"), "")
		expect(t, s, "sync a", "terminate", "terminated")
		p.Update(pod("a", "1"), "")
		p.Enqueue("1")
		time.Sleep(10 * time.Minute)
		expect(t, s, "sync a", "terminate", "terminated")
		p.Remove("1")
		expect(t, s, "sync a", "terminate", "terminated", "terminated")
		if p.Knows("1") || !s.ended[1].Removed {
			t.Errorf("known %v, end %+v: want a forgotten, removed pod", p.Knows("1"), s.ended[1])
		}
	})
}

func TestDeleteOfAFinishedPodIsReported(t *testing.T) {
	s := &script{sync: func(context.Context, *v1.Pod) SyncResult { return SyncResult{Finished: true} }}
	run(t, s, func(p *Pool) {
		p.Update(pod("a", "1"), "")
		deleted := pod("a", "1")
		deleted.DeletionTimestamp = ptr.To(metav1.Now())
		synctest.Wait()
		p.Update(deleted, "")
		expect(t, s, "sync a", "terminate", "terminated", "terminated")
		if !s.ended[1].Deleted {
			t.Errorf("second terminated call = %+v, want Deleted", s.ended[1])
		}
	})
}

func TestDeleteInterruptsSync(t *testing.T) {
	s := &script{sync: func(ctx context.Context, _ *v1.Pod) SyncResult {
		<-ctx.Done() // a pull that never ends
		return SyncResult{Err: ctx.Err()}
	}}
	run(t, s, func(p *Pool) {
		p.Update(pod("a", "1"), "")
		synctest.Wait()
		began := time.Now()
		p.Remove("1")
		expect(t, s, "sync a", "terminate", "terminated")
		if took := time.Since(began); took != 0 {
			t.Errorf("the delete waited %v for the sync, want 0", took)
		}
	})
}

// TestStopInterruptsSync: an evicted pod ends at once, stays as one that is wanted, and starts no more.
func TestStopInterruptsSync(t *testing.T) {
	s := &script{sync: func(ctx context.Context, _ *v1.Pod) SyncResult {
		<-ctx.Done() // a pull that never ends
		return SyncResult{Err: ctx.Err()}
	}}
	run(t, s, func(p *Pool) {
		p.Stop("1", nil) // it is unknown
		p.Update(pod("a", "1"), "")
		synctest.Wait()
		began := time.Now()
		p.Stop("1", ptr.To[int64](7))
		expect(t, s, "sync a", "terminate", "terminated")
		if took := time.Since(began); took != 0 {
			t.Errorf("the pod went on for %v, want 0", took)
		}
		if e := s.ended[0]; e.Removed || e.Deleted || e.Pod == nil || e.Grace == nil || *e.Grace != 7 {
			t.Errorf("end = %+v, want the pod, neither removed nor deleted, with a grace of 7", e)
		}
		p.Update(pod("a", "1"), "")
		time.Sleep(10 * time.Minute)
		expect(t, s, "sync a", "terminate", "terminated")
		s.sync = nil
		p.Remove("1")
		synctest.Wait()
		p.Update(pod("b", "1"), "") // a manifest that comes back
		expect(t, s, "sync a", "terminate", "terminated", "terminated", "sync b")
	})
}

func TestShorterGraceInterruptsTerminate(t *testing.T) {
	var graces []int64
	s := &script{terminate: func(ctx context.Context, end End) error {
		graces = append(graces, *end.Grace)
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(*end.Grace) * time.Second):
		}
		return ctx.Err()
	}}
	run(t, s, func(p *Pool) {
		began := time.Now()
		p.Update(pod("a", "1"), "")
		p.Stop("1", ptr.To[int64](30))
		synctest.Wait()
		p.Stop("1", ptr.To[int64](60)) // longer: no effect
		p.Stop("1", nil)               // its own: neither
		synctest.Wait()
		p.Stop("1", ptr.To[int64](1))
		p.Remove("1")
		for p.Knows("1") {
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
		}
		if diff := cmp.Diff([]int64{30, 1}, graces); diff != "" {
			t.Errorf("graces (-want +got):\n%s", diff)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("took %v, want about 1 s", took)
		}
	})
}

func TestSameUIDWantedAgainStartsAfresh(t *testing.T) {
	release := make(chan struct{})
	s := &script{terminate: func(context.Context, End) error { <-release; return nil }}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		release = make(chan struct{})
		p := New(ctx, Options{})
		p.SetSyncer(s)
		p.Update(pod("a", "1"), "")
		synctest.Wait()
		p.Remove("1")
		synctest.Wait()
		p.Update(pod("a", "1"), "")
		expect(t, s, "sync a", "terminate")
		close(release)
		expect(t, s, "sync a", "terminate", "terminated", "sync a")
		cancel()
		p.Wait()
	})
}

// TestDeletedPodThatComesBackIsReported: a pod that was deleted and removed is stored again, still with its deletion
// time, before its worker is forgotten. Its end is reported again: the API server still has it.
func TestDeletedPodThatComesBackIsReported(t *testing.T) {
	deleted := pod("a", "1")
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	s := &script{}
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s.terminate = func(context.Context, End) error { <-release; return nil }
		ctx, cancel := context.WithCancel(t.Context())
		p := New(ctx, Options{})
		p.SetSyncer(s)
		p.Update(deleted, "")
		p.Remove("1")
		synctest.Wait()
		p.Update(deleted, "")
		close(release)
		expect(t, s, "terminate", "terminated", "terminate", "terminated")
		s.mu.Lock()
		if end := s.ended[len(s.ended)-1]; !end.Deleted || end.Removed {
			t.Errorf("last end = %+v, want Deleted and not Removed", end)
		}
		s.mu.Unlock()
		cancel()
		p.Wait()
	})
}

func TestStartAfterWaitsForTheOlderPod(t *testing.T) {
	var release chan struct{}
	s := &script{terminate: func(context.Context, End) error { <-release; return nil }}
	run(t, s, func(p *Pool) {
		release = make(chan struct{})
		p.Update(pod("old", "1"), "")
		synctest.Wait()
		p.Remove("1")
		p.Update(pod("new", "2"), "1")
		expect(t, s, "sync old", "terminate")
		close(release)
		expect(t, s, "sync old", "terminate", "terminated", "sync new")
	})
}

func TestFailuresBackOffAndNewsComeAtOnce(t *testing.T) {
	fail := true
	s := &script{}
	s.sync = func(context.Context, *v1.Pod) SyncResult {
		if fail {
			return SyncResult{Err: errors.New("no")}
		}
		return SyncResult{}
	}
	run(t, s, func(p *Pool) {
		p.Update(pod("a", "1"), "")
		time.Sleep(time.Minute) // 0, 1, 3, 7, 15, 31 s
		synctest.Wait()
		if n := len(s.seen()); n != 6 {
			t.Errorf("%d syncs in the first minute of failing, want 6", n)
		}
		fail = false
		p.Enqueue("1")
		synctest.Wait()
		if n := len(s.seen()); n != 7 {
			t.Errorf("a enqueue did not sync at once: %d syncs, want 7", n)
		}
	})
}

func TestRetryAtIsKept(t *testing.T) {
	s := &script{}
	s.sync = func(context.Context, *v1.Pod) SyncResult {
		return SyncResult{RetryAt: time.Now().Add(10 * time.Second)}
	}
	run(t, s, func(p *Pool) {
		p.Update(pod("a", "1"), "")
		time.Sleep(35 * time.Second)
		synctest.Wait()
		if n := len(s.seen()); n != 4 {
			t.Errorf("%d syncs in 35 s with a retry every 10, want 4", n)
		}
	})
}

func TestPanicIsOnePodsOwn(t *testing.T) {
	s := &script{}
	s.sync = func(_ context.Context, pod *v1.Pod) SyncResult {
		if pod.Name == "bad" {
			panic("boom")
		}
		return SyncResult{}
	}
	run(t, s, func(p *Pool) {
		p.Update(pod("bad", "1"), "")
		p.Update(pod("good", "2"), "")
		synctest.Wait()
		p.Remove("1")
		synctest.Wait()
		if p.Knows("1") || !p.Knows("2") {
			t.Errorf("pods known: %v, want only the good one", p.UIDs())
		}
	})
}

// TestByIsKept: a sync is due at a time whatever else is wanted, also while the pod fails.
func TestByIsKept(t *testing.T) {
	for name, c := range map[string]struct {
		out  SyncResult
		want int // syncs in the first 6 s
	}{
		"nothing else is wanted": {SyncResult{}, 2},
		"it is wanted later":     {SyncResult{RetryAt: time.Now().Add(time.Hour)}, 2},
		"the pod fails":          {SyncResult{Err: errors.New("no")}, 4}, // 0, 1, 3, 5 s
	} {
		s := &script{}
		run(t, s, func(p *Pool) {
			end := time.Now().Add(5 * time.Second)
			s.sync = func(context.Context, *v1.Pod) SyncResult {
				if time.Now().Before(end) {
					out := c.out
					if !out.RetryAt.IsZero() {
						out.RetryAt = time.Now().Add(time.Hour)
					}
					out.By = end
					return out
				}
				return SyncResult{}
			}
			p.Update(pod("a", "1"), "")
			time.Sleep(6 * time.Second)
			synctest.Wait()
			if got := len(s.seen()); got != c.want {
				t.Errorf("%s: %d syncs, want %d", name, got, c.want)
			}
		})
	}
}
