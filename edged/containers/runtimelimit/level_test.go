package runtimelimit

import (
	"math"
	"testing"
	"time"
)

func TestTrend(t *testing.T) {
	for name, tc := range map[string]struct {
		took  func(k Kind, atOnce float64) float64
		slope float64
	}{
		"as long with more at once": {func(Kind, float64) float64 { return 0.1 }, 0},
		"twice as long with twice":  {func(_ Kind, n float64) float64 { return 0.1 * n }, 1},
		"kinds differ":              {func(k Kind, n float64) float64 { return float64(k+1) * math.Sqrt(n) }, 0.5},
		"shorter with more at once": {func(_ Kind, n float64) float64 { return 1 / n }, 0},
		"much longer with more":     {func(_ Kind, n float64) float64 { return n * n * n }, 2},
	} {
		var varied, constant trend
		now := time.Unix(1e9, 0)
		for i := range 60 {
			k, n := Kind(i%3), float64(2+i%5)
			varied.add(now, k, math.Log(n), math.Log(tc.took(k, n)))
			constant.add(now, k, math.Log(4), math.Log(tc.took(k, 4)))
		}
		if slope, certain := varied.slope(); math.Abs(slope-tc.slope) > 0.01 || certain < 0.8 {
			t.Errorf("%s: slope %.2f, certain by %.2f; want %.2f, certainly", name, slope, certain, tc.slope)
		}
		if _, certain := constant.slope(); certain > 0.01 {
			t.Errorf("%s: certain by %.2f although always as many ran at once, want 0", name, certain)
		}
	}
}

func TestTrendForgets(t *testing.T) {
	var tr trend
	now := time.Unix(1e9, 0)
	for i := range 60 {
		tr.add(now, RunPodSandbox, float64(i%3), float64(i%3))
	}
	tr.add(now.Add(forgotten+1), RunPodSandbox, 1, 5)
	if slope, certain := tr.slope(); slope != 0 || certain != 0 {
		t.Errorf("slope %v, certain by %v after a rest; want 0 and 0", slope, certain)
	}
}

func TestLevel(t *testing.T) {
	const second = time.Second
	longer := func(n int) time.Duration { return time.Duration(n) * second }
	now := time.Unix(1e9, 0)
	for name, tc := range map[string]struct {
		kind    Kind
		limited bool
		took    func(atOnce int) time.Duration
		low     float64
		top     float64
	}{
		"nobody waits":           {RunPodSandbox, false, func(int) time.Duration { return second }, 8, 8},
		"stops say nothing":      {StopContainer, true, func(int) time.Duration { return second }, 8, 8},
		"more gets more done":    {RunPodSandbox, true, func(int) time.Duration { return second }, 12, 16},
		"more gets no more done": {RunPodSandbox, true, longer, 4, 6},
		"no time at all":         {RunPodSandbox, true, func(int) time.Duration { return 0 }, 8, 8},
	} {
		l := newLevel(4)
		for i := range 80 {
			n := 2 + i%4
			l.measured(now, tc.kind, tc.took(n), float64(n), tc.limited)
		}
		if l.limit < tc.low || l.limit > tc.top {
			t.Errorf("%s: limit %.1f, want %.1f to %.1f", name, l.limit, tc.low, tc.top)
		}
	}
}

func TestStartOfTheLevel(t *testing.T) {
	for cpus, want := range map[int]int{0: 2, 1: 2, 2: 4, 4: 8, 8: 16, 128: 16} {
		l := newLevel(cpus)
		if got := l.current(); got != want {
			t.Errorf("%d processors: limit %d, want %d", cpus, got, want)
		}
	}
}
