package ratelimit

import (
	"testing"
	"time"
)

// TestForgets: the memory is bounded, and a key that is over its limit is the last to be forgotten.
func TestForgets(t *testing.T) {
	now := time.Unix(0, 0)
	l := New[int](0.001, 2)
	if l.max != maxKeys {
		t.Errorf("a limiter keeps %d keys, want %d", l.max, maxKeys)
	}
	l.max = 1000
	for l.Of(-1, now).AllowN(now, 1) {
	}
	for i := range 3 * l.max {
		now = now.Add(time.Millisecond)
		l.Of(i, now).AllowN(now, 1)
		if i%100 == 0 && l.Of(-1, now).AllowN(now, 1) {
			t.Fatalf("the key over the limit is forgotten after %d others, want it kept", i)
		}
	}
	if len(l.buckets) > l.max {
		t.Errorf("%d keys are kept, want at most %d", len(l.buckets), l.max)
	}
	now = now.Add(time.Hour)
	l.Of(-2, now)
	for i := range l.max {
		l.Of(-3-i, now)
	}
	if got := len(l.buckets); got > l.max {
		t.Errorf("%d keys are kept after an hour, want at most %d", got, l.max)
	}
}
