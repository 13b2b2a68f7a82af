package runtimelimit

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// calls counts the calls that a test makes.
type calls struct {
	wg sync.WaitGroup
	mu sync.Mutex
	// now and most are how many calls run, and have run at once.
	now, most, made int
}

// make makes a call in a goroutine, which takes d.
func (c *calls) make(ctx context.Context, l *Limiter, k Kind, d time.Duration) {
	c.wg.Go(func() {
		_ = l.Do(ctx, k, func() error {
			c.mu.Lock()
			c.now++
			c.made++
			c.most = max(c.most, c.now)
			c.mu.Unlock()
			time.Sleep(d)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.now--
			return nil
		})
	})
}

// count returns how many calls were made, and how many run.
func (c *calls) count() (made, now int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.made, c.now
}

// gauges returns the metrics of a limiter.
func gauges(t *testing.T, l *Limiter) map[string]float64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(l)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			values[f.GetName()+" "+m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
		}
	}
	return values
}

func TestLimiterBoundsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := New(2), &calls{}
		for range 30 {
			c.make(t.Context(), l, StartContainer, 100*time.Millisecond)
		}
		time.Sleep(101 * time.Millisecond) // the first two have started
		synctest.Wait()
		want := map[string]float64{
			"edgecore_runtime_calls_in_flight end":   0,
			"edgecore_runtime_calls_in_flight start": 4,
			"edgecore_runtime_calls_limit end":       4,
			"edgecore_runtime_calls_limit start":     4,
			"edgecore_runtime_calls_waiting end":     0,
			"edgecore_runtime_calls_waiting start":   24,
		}
		if diff := cmp.Diff(want, gauges(t, l)); diff != "" {
			t.Errorf("metrics mismatch (-want +got):\n%s", diff)
		}
		c.wg.Wait()
		// Calls that take no longer the more of them there are let the limit rise.
		if c.made != 30 || c.most < 4 || c.most > 8 {
			t.Errorf("%d calls made, up to %d at once; want 30, and from 4 up to 8", c.made, c.most)
		}
	})
}

func TestLimiterPassesHangingCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := New(1), &calls{}
		for range 6 {
			c.make(t.Context(), l, StartContainer, time.Hour)
		}
		began := time.Now()
		synctest.Wait()
		c.make(t.Context(), l, RunPodSandbox, time.Millisecond)
		time.Sleep(4 * countsUnknown)
		synctest.Wait()
		if made, now := c.count(); made != 7 || now != 6 {
			t.Errorf("%d calls made and %d under way after %v, want 7 and 6", made, now, time.Since(began))
		}
		c.wg.Wait()
	})
}

func TestLimiterGivesUpWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := New(1), &calls{}
		for range 2 {
			c.make(t.Context(), l, RunPodSandbox, time.Second)
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		err := l.Do(ctx, RunPodSandbox, func() error { return errors.New("called") })
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Do = %v, want %v", err, context.DeadlineExceeded)
		}
		began := time.Now()
		err = l.Do(Urgent(t.Context()), StopContainer, func() error { return nil })
		if err != nil || time.Now() != began {
			t.Errorf("urgent call: %v after %v, want nil at once", err, time.Since(began))
		}
		c.wg.Wait()
	})
}

func TestWithOwnerStaysUrgent(t *testing.T) {
	ctx := WithOwner(Urgent(WithOwner(t.Context(), Owner{UID: "a"})), Owner{UID: "b"})
	if got, want := ownerFrom(ctx), (Owner{UID: "b", class: urgent}); got != want {
		t.Errorf("owner %+v, want %+v", got, want)
	}
}

// TestBusy: while calls wait or run; a call that hangs does not count for long.
func TestBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(1)
		if l.Busy() {
			t.Error("busy without a call")
		}
		release := make(chan struct{})
		var calls sync.WaitGroup
		calls.Go(func() {
			_ = l.Do(t.Context(), RunPodSandbox, func() error { <-release; return nil })
		})
		synctest.Wait()
		if !l.Busy() {
			t.Error("not busy while a sandbox is made")
		}
		time.Sleep(countsUnknown + time.Second)
		if l.Busy() {
			t.Error("busy because of a call that hangs")
		}
		close(release)
		calls.Wait()
	})
}
