package main

import (
	"math"
	"testing"
	"time"
)

// TestMeasured: the model repeats the measured storms of docs/scale.md within 30 %. The cost of the standard plan was
// fitted to the one of 5,000 nodes. The other costs were measured: with 1,000 nodes, where three cloudcores share two
// cores, and with 5,000, where other programs used 36 % of these. In the storm of 10,000 nodes, cloudcore ended
// connections after 15 s.
func TestMeasured(t *testing.T) {
	const near = 0.3
	for _, c := range []struct {
		nodes                   int
		cores                   float64
		cost, timeout, measured time.Duration
		failures                int
	}{
		{1000, 2, 2400 * time.Microsecond, dialTimeout, 2100 * time.Millisecond, 0},
		{5000, 2, 2400 * time.Microsecond, dialTimeout, 7 * time.Second, 0},
		{1000, 2, 3800 * time.Microsecond, dialTimeout, 2910 * time.Millisecond, 0},
		{3000, 2, 3800 * time.Microsecond, dialTimeout, 6490 * time.Millisecond, 0},
		{5000, 1.28, 4 * time.Millisecond, dialTimeout, 15700 * time.Millisecond, 0},
		{10000, 2, 3800 * time.Microsecond, 15 * time.Second, 25230 * time.Millisecond, 1556},
	} {
		p := standard(c.nodes, 1)
		p.cost, p.cores, p.timeout = c.cost, c.cores, c.timeout
		got := simulate(p)
		if ratio := got.all.Seconds() / c.measured.Seconds(); ratio < 1-near || ratio > 1+near {
			t.Errorf("%d nodes, %v each: back after %v, want %v within 30 %%", c.nodes, c.cost, got.all, c.measured)
		}
		if off := math.Abs(float64(got.failures - c.failures)); off > near*float64(c.failures) {
			t.Errorf("%d nodes, %v each: %d failed dials, want %d within 30 %%", c.nodes, c.cost, got.failures,
				c.failures)
		}
	}
}

// TestTimeout: nodes that would wait longer than their timeout fail, and come back all the same.
func TestTimeout(t *testing.T) {
	p := standard(100000, 3)
	o := simulate(p)
	if o.failures == 0 || o.back != p.nodes {
		t.Errorf("%d dials failed and %d of %d nodes are back, want failures, and all nodes back", o.failures,
			o.back, p.nodes)
	}
	if again := simulate(p); again != o {
		t.Errorf("the same plan gave %+v, then %+v", o, again)
	}
}

// TestNodeLimit: no replica takes more nodes than its limit.
func TestNodeLimit(t *testing.T) {
	p := standard(1000, 3)
	p.limit = 300
	if o := simulate(p); o.back != 900 || o.all != 0 {
		t.Errorf("%d nodes are back, all of them after %v; want 900, and never all", o.back, o.all)
	}
}
