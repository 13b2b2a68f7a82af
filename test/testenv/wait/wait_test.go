package wait

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/limit"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// recorder is a testing.TB that keeps the failure instead of failing.
type recorder struct {
	testing.TB
	ctx    context.Context
	failed string
}

func (r *recorder) Helper()                  {}
func (r *recorder) Context() context.Context { return r.ctx }
func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// failure returns the message with which a wait fails its test, and how long the simulated clock says that it waited.
func failure(t *testing.T, waits func(testing.TB)) (message string, took time.Duration) {
	t.Helper()
	r := &recorder{TB: t, ctx: t.Context()}
	began := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		waits(r)
	}()
	<-done
	return r.failed, time.Since(began)
}

func TestWaits(t *testing.T) {
	closed := func() chan int { c := make(chan int); close(c); return c }
	for name, c := range map[string]struct {
		waits func(testing.TB)
		want  string // in the message; empty: the wait ends well
		after time.Duration
	}{
		"until": {func(t testing.TB) {
			Until(t, "tea", errorsUntil(time.Now().Add(time.Minute)))
		}, "", time.Minute},
		"until never": {func(t testing.TB) {
			Until(t, "tea", errorsUntil(time.Now().Add(time.Hour)))
		}, "waiting for tea: context deadline exceeded: no tea", limit.Wait},
		"until fatal": {func(t testing.TB) {
			Until(t, "tea", func() error { return daemon.Fatal(errors.New("no pot")) })
		}, "waiting for tea: no pot", 0},
		"true": {func(t testing.TB) { True(t, "tea", func() bool { return true }) }, "", 0},
		"true never": {func(t testing.TB) { True(t, "tea", func() bool { return false }) }, "it has not happened",
			limit.Wait},
		"receive": {func(t testing.TB) {
			values := make(chan int, 1)
			values <- 7
			if got := Receive(t, "a number", values); got != 7 {
				t.Fatalf("received %d, want 7", got)
			}
		}, "", 0},
		"receive never": {func(t testing.TB) {
			Receive(t, "a number", make(chan int))
		}, "waiting for a number: nothing came", limit.Wait},
		"receive closed": {func(t testing.TB) { Receive(t, "a number", closed()) }, "the channel is closed", 0},
		"closed":         {func(t testing.TB) { Closed(t, "the end", closed()) }, "", 0},
		"closed never":   {func(t testing.TB) { Closed(t, "the end", make(chan int)) }, "it has not ended", limit.Wait},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got, took := failure(t, c.waits)
				if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
					t.Errorf("failed with %q, want %q", got, c.want)
				}
				if took < c.after || took > c.after+interval {
					t.Errorf("waited %v, want %v", took, c.after)
				}
			})
		})
	}
}

func errorsUntil(end time.Time) func() error {
	return func() error {
		if time.Now().Before(end) {
			return errors.New("no tea")
		}
		return nil
	}
}

// TestInCleanup: t.Context has ended when clean-up functions run, which may wait as well.
func TestInCleanup(t *testing.T) {
	t.Cleanup(func() {
		tries := 0
		True(t, "the third try", func() bool { tries++; return tries == 3 })
		if err := Context(t).Err(); err != nil {
			t.Errorf("Context().Err() = %v in a clean-up, want nil", err)
		}
	})
}
