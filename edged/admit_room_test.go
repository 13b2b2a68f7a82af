package edged

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/admission"
	"github.com/edgecore-io/edgecore/edged/desired"
	"github.com/edgecore-io/edgecore/edged/events"
	"github.com/edgecore-io/edgecore/edged/podstop"
	"github.com/edgecore-io/edgecore/edged/podworker"
	"github.com/edgecore-io/edgecore/edged/status"
	"github.com/edgecore-io/edgecore/edged/termination"
	"github.com/edgecore-io/edgecore/pkg/notify"
)

// stuck is a syncer of pods that cannot be killed, but for those that end by themselves.
type stuck struct {
	e    *Edged
	ends map[types.UID]time.Duration
}

func (s *stuck) Sync(ctx context.Context, _ *v1.Pod) podworker.Outcome {
	<-ctx.Done()
	return podworker.Outcome{Err: ctx.Err()}
}

func (s *stuck) Terminate(ctx context.Context, end podworker.End) error {
	after, ok := s.ends[end.UID]
	if !ok {
		<-ctx.Done()
		return ctx.Err()
	}
	time.Sleep(after)
	return nil
}

func (s *stuck) Terminated(_ context.Context, end podworker.End) error {
	s.e.ended(end.UID)
	return nil
}

// TestMakeRoomGivesUp: a critical pod waits for its victims, but not for one that has gone already or never ends.
func TestMakeRoomGivesUp(t *testing.T) {
	for name, c := range map[string]struct {
		ends      map[types.UID]time.Duration
		gone      bool
		want      time.Duration
		preempted float64
		exceeded  bool
	}{
		"ends":           {map[types.UID]time.Duration{"1": 7 * time.Second}, false, 7 * time.Second, 1, false},
		"has ended":      {map[types.UID]time.Duration{"1": 0}, true, 0, 1, false},
		"cannot be kept": {nil, false, 30 * time.Second, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				e := &Edged{state: &state{desired: desired.New()}, life: ctx, preemptions: newPreemptions(), capacityFreed: notify.NewSignal()}
				e.recorder = events.New("n", nil)
				s := &stuck{e: e, ends: c.ends}
				e.pool = podworker.New(ctx, podworker.Options{Syncer: s})
				e.stopper = podstop.New(ctx, podstop.Options{Desired: e.desired, Workers: e.pool, Waiters: &e.terminations, Recorder: e.recorder})
				victim := testPod("victim", "1")
				victim.Spec.TerminationGracePeriodSeconds = ptr.To[int64](20)
				e.desired.Put(victim, false)
				e.pool.Update(victim, "")
				synctest.Wait()
				if c.gone {
					e.pool.Stop("1", nil)
					synctest.Wait()
				}
				began := time.Now()
				e.makeRoom(ctx, testPod("critical", "2"), admission.Verdict{Victims: []*v1.Pod{victim}, Lack: v1.ResourceMemory})
				if took := time.Since(began); took != c.want {
					t.Errorf("makeRoom took %v of the simulated clock, want %v", took, c.want)
				}
				synctest.Wait()
				var m dto.Metric
				if err := e.preemptions.WithLabelValues("memory").Write(&m); err != nil {
					t.Fatal(err)
				}
				if got := m.GetCounter().GetValue(); got != c.preempted {
					t.Errorf("kubelet_preemptions of memory = %v, want %v", got, c.preempted)
				}
				exceeded := false
				for _, event := range e.recorder.List() {
					exceeded = exceeded || event.Reason == "ExceededGracePeriod" && event.Message == termination.MessageExceededGrace
				}
				if exceeded != c.exceeded {
					t.Errorf("event ExceededGracePeriod: %t, want %t", exceeded, c.exceeded)
				}
				cancel()
				e.pool.Wait()
				e.stopper.Wait()
			})
		})
	}
}

// TestStoppedPodsCount: what a pod has that is being ended is not free before it has ended.
func TestStoppedPodsCount(t *testing.T) {
	e := &Edged{state: &state{desired: desired.New()}, statuses: status.NewManager(nil)}
	e.allocations = e.newAllocations()
	for _, uid := range []types.UID{"1", "2"} {
		e.desired.Put(testPod(string(uid), uid), false)
		e.desired.SetAdmission(uid, nil)
	}
	e.desired.Stop("1", &status.Stopped{Reason: "Evicted"})
	if got := e.beside("2"); len(got) != 1 || got[0].UID != "1" {
		t.Errorf("pods beside 2 = %v, want 1, which is being ended", got)
	}
}
