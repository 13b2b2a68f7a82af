package logrotate

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
)

func TestSetLimits(t *testing.T) {
	r := New(Options{MaxSize: 100, MaxFiles: 5})
	for _, tc := range []struct {
		size          int64
		files         int
		wantSize      int64
		wantFiles     int
		wantAllOfThem int64
	}{
		{100, 5, 100, 5, 500}, {10, 1, 10, 2, 20}, {0, 3, math.MaxInt64, 3, math.MaxInt64},
		{-1, 0, math.MaxInt64, 2, math.MaxInt64},
	} {
		r.SetLimits(tc.size, tc.files)
		if l := r.limits.Load(); l.size != tc.wantSize || l.files != tc.wantFiles || r.budget() != tc.wantAllOfThem {
			t.Errorf("%d, %d: %+v, %d in all; want %+v", tc.size, tc.files, l, r.budget(), tc)
		}
	}
}

// TestAwaitLimits: logs without a limit get one later.
func TestAwaitLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Options{})
		got := make(chan bool, 1)
		go func() { got <- r.awaitLimits(t.Context()) }()
		synctest.Wait()
		if len(got) > 0 {
			t.Error("awaitLimits() returned without a limit, want it to wait")
		}
		r.SetLimits(100, 5)
		if !<-got {
			t.Error("awaitLimits() after SetLimits(100, 5) = false, want true")
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		r.SetLimits(0, 5)
		<-r.changed // what the call above has poked
		if r.awaitLimits(ended) {
			t.Error("awaitLimits() of a cancelled context = true, want false")
		}
	})
}
