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
	if !w.stop("1", why) || w.stop("1", &status.Stopped{Reason: "Other"}) {
		t.Error("a pod is stopped once")
	}
	if got, _ := w.get("1"); got.stopped != why {
		t.Errorf("stopped for %+v, want %+v", got.stopped, why)
	}
	w.leave("2")
	if w.stop("2", why) || w.stop("3", why) {
		t.Error("a pod is stopped that nobody wants")
	}
	w.prepare("1", true)
	w.prepare("3", true)
	if got, _ := w.get("1"); !got.preparing {
		t.Error("not being made ready")
	}
	w.prepare("1", false)
	if got, _ := w.get("1"); got.preparing {
		t.Error("still being made ready")
	}
	w.judge("1", nil)
	w.prepare("1", true)
	w.unjudge("1")
	if got, _ := w.get("1"); got.preparing || got.admitted {
		t.Errorf("get(1) = %+v, want it neither admitted nor being made ready", got)
	}
}

func TestEnds(t *testing.T) {
	var e ends
	e.tell("1") // nobody waits
	first, second, other := e.wait("1"), e.wait("1"), e.wait("2")
	e.tell("1")
	for _, done := range []<-chan struct{}{first, second} {
		select {
		case <-done:
		default:
			t.Error("not told")
		}
	}
	select {
	case <-other:
		t.Error("told of another's end")
	case <-e.wait("1"):
		t.Error("told of the end of before")
	default:
	}
}
