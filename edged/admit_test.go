package edged

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/status"
)

func TestWantedStops(t *testing.T) {
	w := newWanted()
	w.setStatic([]*v1.Pod{testPod("a", "1"), testPod("b", "2")})
	why := &status.Stopped{Reason: "Preempting"}
	if first, second := w.stop("1", why), w.stop("1", &status.Stopped{Reason: "Other"}); !first || second {
		t.Errorf("stop(1) twice = %t, %t, want true, false", first, second)
	}
	if got, _ := w.get("1"); got.stopped != why {
		t.Errorf("stopped for %+v, want %+v", got.stopped, why)
	}
	w.leave("2")
	if two, three := w.stop("2", why), w.stop("3", why); two || three {
		t.Errorf("stop of pods that are not desired: stop(2), stop(3) = %t, %t, want false, false", two, three)
	}
	w.prepare("1", true)
	w.prepare("3", true)
	if got, _ := w.get("1"); !got.preparing {
		t.Errorf("get(1) = %+v after prepare(1, true), want preparing", got)
	}
	w.prepare("1", false)
	if got, _ := w.get("1"); got.preparing {
		t.Errorf("get(1) = %+v after prepare(1, false), want it not preparing", got)
	}
	w.judge("1", nil)
	w.prepare("1", true)
	w.unjudge("1")
	if got, _ := w.get("1"); got.preparing || got.admitted {
		t.Errorf("get(1) = %+v, want it neither admitted nor being made ready", got)
	}
}
