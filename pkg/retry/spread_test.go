package retry

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSpreadLimits(t *testing.T) {
	const s = time.Second
	b := NewSpread(s, time.Minute)
	highest := func(n time.Duration) time.Duration { return n - 1 }
	b.random = highest
	var got []time.Duration
	for range 8 {
		got = append(got, b.Next())
	}
	if diff := cmp.Diff([]time.Duration{2 * s, 4 * s, 8 * s, 16 * s, 32 * s, 60 * s, 60 * s, 60 * s}, got); diff != "" {
		t.Errorf("longest delays mismatch (-want +got):\n%s", diff)
	}
	b.random = func(time.Duration) time.Duration { return 0 }
	if d := b.Next(); d != s {
		t.Errorf("shortest delay = %v, want 1s", d)
	}
	b.Reset()
	b.random = highest
	if d := b.Next(); d != 2*s {
		t.Errorf("longest delay after a reset = %v, want 2s", d)
	}
	b.failures = 1 << 30
	if d := b.Next(); d != 60*s {
		t.Errorf("longest delay after very many failures = %v, want 1m", d)
	}
	if d := NewSpread(time.Hour, time.Hour).Next(); d != time.Hour {
		t.Errorf("delay from 1h to 1h = %v, want 1h", d)
	}
}

func TestSpreadOfDevices(t *testing.T) {
	const s = time.Second
	spread := map[time.Duration]int{}
	for range 1000 {
		b := NewSpread(s, time.Minute)
		b.failures = 4
		d := b.Next()
		if d < s || d > 32*s {
			t.Fatalf("delay = %v, want %v to %v", d, s, 32*s)
		}
		spread[d/(4*s)]++
	}
	for i := range time.Duration(8) {
		if spread[i] < 40 { // of 125
			t.Errorf("delays in %v to %v = %d of 1000, want 40 or more", i*4*s, (i+1)*4*s, spread[i])
		}
	}
}
