package retry

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func within(t *testing.T, what string, got, least time.Duration) {
	t.Helper()
	if most := least + least/4; got < least || got > most {
		t.Errorf("%s = %v, want between %v and %v", what, got, least, most)
	}
}

func TestBackoff(t *testing.T) {
	b := NewBackoff(time.Second, 5*time.Second)
	for range 2 { // the second time after Reset
		for i, least := range []time.Duration{
			time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second,
		} {
			within(t, fmt.Sprintf("delay %d", i), b.Next(), least)
		}
		b.Reset()
	}
}

// TestSpread: two devices that fail at the same moment do not try again at the same moment.
func TestSpread(t *testing.T) {
	seen := map[time.Duration]bool{}
	for range 100 {
		seen[NewBackoff(time.Minute, time.Hour).Next()] = true
	}
	if len(seen) < 90 {
		t.Errorf("different delays of 100 devices = %d, want 90 at least", len(seen))
	}
}

func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, attempts := time.Now(), 0
		var told []time.Duration
		ok := Until(t.Context(), time.Second, time.Minute, func(context.Context) error {
			if attempts++; attempts < 4 {
				return errors.New("not yet")
			}
			return nil
		}, func(_ error, again time.Duration) { told = append(told, again) })
		if !ok || attempts != 4 || len(told) != 3 {
			t.Fatalf("ok, attempts, errors = %v, %d, %d; want true, 4, 3", ok, attempts, len(told))
		}
		within(t, "time of 3 delays", time.Since(began), 7*time.Second)
	})
}

func TestUntilEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		began := time.Now()
		if Until(ctx, time.Second, time.Minute, func(context.Context) error { return errors.New("never") }, nil) {
			t.Error("result = true, want false: it never worked")
		}
		if got := time.Since(began); got != 10*time.Second {
			t.Errorf("it ended after %v, want 10s, when its context did", got)
		}
	})
}
