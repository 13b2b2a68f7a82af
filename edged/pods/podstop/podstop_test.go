package podstop

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/pods/podworker"
	"github.com/edgecore-io/edgecore/edged/pods/termination"
	"github.com/edgecore-io/edgecore/edged/podstate/admission"
	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// workers record what they are told.
type workers struct {
	podworker.Interface
	known   map[types.UID]bool
	stopped []types.UID
	grace   *int64
}

func (w *workers) Knows(uid types.UID) bool { return w.known[uid] }

func (w *workers) Stop(uid types.UID, grace *int64) {
	w.stopped, w.grace = append(w.stopped, uid), grace
}

// noted returns the events that were recorded with a reason.
func noted(r *events.Recorder, reason string) int {
	n := 0
	for _, e := range r.List() {
		if e.Reason == reason {
			n++
		}
	}
	return n
}

// TestStop: a pod is stopped once, and an event tells of one that takes too long.
func TestStop(t *testing.T) {
	for name, c := range map[string]struct {
		endsAfter time.Duration // 0: never
		exceeded  int
	}{
		"ends in time":  {15 * time.Second, 0},
		"ends too late": {31 * time.Second, 1},
		"never ends":    {0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "1"}}
				w := &workers{known: map[types.UID]bool{"1": true}}
				var waiters termination.Waiters
				o := Options{
					Desired:  desired.New(),
					Workers:  w,
					Statuses: status.NewManager(nil),
					Waiters:  &waiters,
					Recorder: events.New("n", nil),
				}
				o.Desired.Put(pod, false)
				s := New(ctx, o)
				why := status.Stopped{Reason: "Evicted", Message: "no room", Grace: ptr.To[int64](20)}
				s.Stop(pod, why, nil)
				s.Stop(pod, status.Stopped{Reason: "Other"}, nil)
				if got := s.Why("1"); got == nil || got.Reason != "Evicted" {
					t.Errorf("Why = %+v, want the first reason, Evicted", got)
				}
				if len(w.stopped) != 1 || ptr.Deref(w.grace, -1) != 20 {
					t.Errorf("the worker was told %d times, with grace %v; want once, with 20", len(w.stopped), w.grace)
				}
				if c.endsAfter > 0 {
					time.AfterFunc(c.endsAfter, func() { waiters.Ended("1") })
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if got := noted(o.Recorder, termination.ReasonExceededGrace); got != c.exceeded {
					t.Errorf("events ExceededGracePeriod = %d, want %d", got, c.exceeded)
				}
				if got := noted(o.Recorder, "Evicted"); got != 1 {
					t.Errorf("events Evicted = %d, want 1", got)
				}
				cancel()
				s.Wait()
			})
		})
	}
}

// TestEndedWithoutWorker: nobody waits for a pod that has no worker.
func TestEndedWithoutWorker(t *testing.T) {
	var waiters termination.Waiters
	s := New(t.Context(), Options{Workers: &workers{}, Waiters: &waiters})
	select {
	case <-s.Ended("1"):
	default:
		t.Error("Ended of a pod without a worker is open, want it closed")
	}
}

// TestWhyBefore: an agent that was restarted knows from a pod's conditions why it is being stopped.
func TestWhyBefore(t *testing.T) {
	const message = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. "
	disruption := func(status v1.ConditionStatus, reason, message string) v1.PodCondition {
		return v1.PodCondition{Type: v1.DisruptionTarget, Status: status, Reason: reason, Message: message}
	}
	for name, c := range map[string]struct {
		condition v1.PodCondition
		want      string
	}{
		"evicted": {disruption(v1.ConditionTrue, v1.PodReasonTerminationByKubelet, message), "Evicted"},
		"preempted": {disruption(v1.ConditionTrue, v1.PodReasonTerminationByKubelet, admission.DisruptionMessage),
			"Preempting"},
		"of others": {disruption(v1.ConditionTrue, "EvictionByEvictionAPI", message), ""},
		"over":      {disruption(v1.ConditionFalse, v1.PodReasonTerminationByKubelet, message), ""},
		"another cause": {
			disruption(v1.ConditionTrue, v1.PodReasonTerminationByKubelet,
				"Pod was terminated in response to imminent node shutdown."), "",
		},
		"none": {v1.PodCondition{}, ""},
	} {
		got := whyBefore([]v1.PodCondition{c.condition})
		switch {
		case (got == nil) != (c.want == ""):
			t.Errorf("%s: why = %+v, want reason %q", name, got, c.want)
		case got != nil &&
			(got.Reason != c.want || got.Condition == nil || got.Condition.Message != c.condition.Message):
			t.Errorf("%s: why = %+v, want reason %s and the condition", name, got, c.want)
		}
	}
}
