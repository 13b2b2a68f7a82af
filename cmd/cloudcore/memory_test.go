package main

import "testing"

func TestWorthTrimming(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct {
		name                string
		idle, objects, live uint64
		want                bool
	}{
		{"after a storm", 50 * mb, 100 * mb, 100 * mb, true},
		{"garbage", 0, 130 * mb, 100 * mb, true},
		{"at rest", 5 * mb, 105 * mb, 100 * mb, false},
		{"small", 5 * mb, 20 * mb, 18 * mb, false},
		{"less than before", 0, 90 * mb, 100 * mb, false},
	} {
		if got := worthTrimming(c.idle, c.objects, c.live); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
