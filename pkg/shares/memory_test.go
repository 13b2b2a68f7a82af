package shares

import "testing"

// held is a Holder of tests: cuts are how many connections it has to end.
type held struct {
	m            *Memory
	has          int64
	cuts, evicts int
}

func (h *held) CutLargest() bool {
	if h.has == 0 {
		return false
	}
	h.cuts++
	h.Evict()
	h.evicts--
	return true
}

func (h *held) Evict() {
	h.evicts++
	h.m.Return(h, h.has)
	h.has = 0
}

func (h *held) take(n int64) error {
	err := h.m.Take(h, n)
	if err == nil {
		h.has += n
	}
	return err
}

// TestMemory: a tunnel over its share loses its own connections; where there is no memory left, the tunnel ends that
// has most.
func TestMemory(t *testing.T) {
	m := NewMemoryOf(100, 40)
	a, b, c := &held{m: m}, &held{m: m}, &held{m: m}
	for _, step := range []struct {
		h    *held
		n    int64
		want error
	}{{a, 40, nil}, {b, 30, nil}, {a, 10, nil}, {c, 35, nil}, {a, 20, nil}, {b, 5, nil}, {c, 41, ErrUnread}} {
		if err := step.h.take(step.n); err != step.want {
			t.Fatalf("take of %d: %v, want %v", step.n, err, step.want)
		}
	}
	if a.cuts != 1 || b.cuts != 0 || c.cuts != 1 || a.evicts+b.evicts+c.evicts != 0 {
		t.Errorf("cuts %d, %d, %d, ended %d, %d, %d; want 1, 0, 1 and none", a.cuts, b.cuts, c.cuts, a.evicts, b.evicts,
			c.evicts)
	}
	// a has 30, b 35, c none. Until the last step, c has less than b: which of two equal ones ends is chance.
	for _, n := range []int64{25, 5, 10} {
		if err := c.take(n); err != nil {
			t.Fatal(err)
		}
	}
	if b.evicts != 1 || a.evicts+c.evicts != 0 || m.Taken() != a.has+c.has {
		t.Errorf("ended %d, %d, %d, taken %d; want b ended, and %d", a.evicts, b.evicts,
			c.evicts, m.Taken(), a.has+c.has)
	}
}
