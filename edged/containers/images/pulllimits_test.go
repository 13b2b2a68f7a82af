package images

import (
	"testing"

	"golang.org/x/time/rate"
)

// TestSetPace: who pulls already keeps its slot; who comes then has one of the new ones.
func TestSetPace(t *testing.T) {
	p := New(nil, Options{Serialize: true, QPS: 5, Burst: 2})
	first := p.slotsNow()
	if cap(first) != 1 || p.limit.Limit() != 5 || p.limit.Burst() != 2 {
		t.Errorf("%d slots, %v a second, %d at once; want 1, 5, 2", cap(first), p.limit.Limit(), p.limit.Burst())
	}
	first <- struct{}{}
	p.SetPullLimits(PullLimits{Serialize: true, QPS: 9})
	if p.slotsNow() != first || p.limit.Limit() != 9 || p.limit.Burst() != 1 {
		t.Errorf("same slots %v, %v a second, %d at once; want true, 9, 1",
			p.slotsNow() == first, p.limit.Limit(), p.limit.Burst())
	}
	p.SetPullLimits(PullLimits{MaxParallel: 3})
	if next := p.slotsNow(); cap(next) != 3 || len(next) != 0 || p.limit.Limit() != rate.Inf {
		t.Errorf("%d of %d slots taken, %v a second; want 0 of 3, no limit", len(next), cap(next), p.limit.Limit())
	}
	<-first // the pull ends in the slots that it began in
	p.SetPullLimits(PullLimits{})
	if slots := p.slotsNow(); slots != nil {
		t.Errorf("%d slots without a limit, want none", cap(slots))
	}
}
