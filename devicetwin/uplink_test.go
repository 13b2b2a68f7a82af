package devicetwin

import (
	"testing"
	"time"
)

func TestEarliest(t *testing.T) {
	now := time.Unix(1000, 0)
	late := now.Add(sendInterval / 2)
	for name, tc := range map[string]struct {
		do   func(r *reporting)
		want time.Time
	}{
		"a reported value":      {func(r *reporting) { r.changed("a") }, time.Time{}},
		"a desired value waits": {func(r *reporting) { r.received(now, "a") }, now.Add(sendInterval)},
		"the first of two counts": {func(r *reporting) {
			r.received(now, "a")
			r.received(late, "b")
		}, now.Add(sendInterval)},
		"a report takes it along": {func(r *reporting) { r.received(now, "a"); r.changed("a") }, time.Time{}},
		"a state takes it along":  {func(r *reporting) { r.received(now, "a"); r.stateChanged() }, time.Time{}},
		"nothing takes it along":  {func(r *reporting) { r.received(now, "a"); r.changed() }, now.Add(sendInterval)},
		"other values go at once": {func(r *reporting) { r.changed("b"); r.received(now, "a") }, time.Time{}},
		"a state goes at once":    {func(r *reporting) { r.stateChanged(); r.received(now, "a") }, time.Time{}},
		"the interval counts":     {func(r *reporting) { r.next = late; r.changed("a") }, late},
	} {
		var r reporting
		tc.do(&r)
		if got := r.earliest(); !got.Equal(tc.want) {
			t.Errorf("%s: earliest = %v, want %v", name, got, tc.want)
		}
		if !r.due() {
			t.Errorf("%s: due = false, want true", name)
		}
	}
}
