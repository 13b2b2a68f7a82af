package main

import (
	"testing"
	"time"
)

// TestMeasured: the model repeats the measured storms of docs/scale.md within 30 %. The cost of the standard plan was
// fitted to the one of 5,000 nodes. The other cost was measured with 1,000 nodes: three cloudcores
// share two cores.
func TestMeasured(t *testing.T) {
	for _, c := range []struct {
		nodes          int
		cost, measured time.Duration
	}{
		{1000, 2400 * time.Microsecond, 2100 * time.Millisecond},
		{5000, 2400 * time.Microsecond, 7 * time.Second},
		{1000, 3800 * time.Microsecond, 2910 * time.Millisecond},
		{3000, 3800 * time.Microsecond, 6490 * time.Millisecond},
	} {
		p := standard(c.nodes, 1)
		p.cost = c.cost
		got := simulate(p).all
		if ratio := got.Seconds() / c.measured.Seconds(); ratio < 0.7 || ratio > 1.3 {
			t.Errorf("%d nodes, %v each: back after %v, want %v within 30 %%", c.nodes, c.cost, got, c.measured)
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
