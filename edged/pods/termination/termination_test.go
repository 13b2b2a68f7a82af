package termination

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

func closed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

func TestWaiters(t *testing.T) {
	var w Waiters
	first, second, other := w.Wait("1"), w.Wait("1"), w.Wait("2")
	w.Ended("1")
	late := w.Wait("1") // the pod ended before anybody waited
	for name, done := range map[string]<-chan struct{}{"first": first, "second": second, "late": late} {
		if !closed(done) {
			t.Errorf("Wait(1), %s waiter = open after Ended(1), want closed", name)
		}
	}
	if closed(other) {
		t.Error("Wait(2) = closed after Ended(1), want open")
	}
	w.Started("1")
	again := w.Wait("1")
	if closed(again) {
		t.Error("Wait(1) = closed after Started(1), want open")
	}
	w.Forget("1")
	if !closed(again) || len(w.waiting) != 1 || len(w.ended) != 0 {
		t.Errorf("after Forget(1): waiter closed %t, %d waited for, %d ended; want true, 1, 0", closed(again),
			len(w.waiting), len(w.ended))
	}
}

func TestTimeout(t *testing.T) {
	pod := &v1.Pod{}
	if got := Timeout(pod, nil); got != 10*time.Second {
		t.Errorf("no grace: %v, want 10s", got)
	}
	pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](30)
	for grace, want := range map[*int64]time.Duration{nil: 45 * time.Second, ptr.To[int64](1): 10 * time.Second,
		ptr.To[int64](60): 90 * time.Second} {
		if got := Timeout(pod, grace); got != want {
			t.Errorf("grace %v: %v, want %v", ptr.Deref(grace, -1), got, want)
		}
	}
}
