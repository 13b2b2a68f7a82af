package podadmit

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/pods/podstop"
	"github.com/edgecore-io/edgecore/edged/pods/podworker"
	"github.com/edgecore-io/edgecore/edged/pods/termination"
	"github.com/edgecore-io/edgecore/edged/podstate/admission"
	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
)

// slowSyncer is a syncer of pods that cannot be killed, but for those that end by themselves.
type slowSyncer struct {
	waiters *termination.Waiters
	ends    map[types.UID]time.Duration
}

func (s *slowSyncer) Sync(ctx context.Context, _ *v1.Pod) podworker.SyncResult {
	<-ctx.Done()
	return podworker.SyncResult{Err: ctx.Err()}
}

func (s *slowSyncer) Terminate(ctx context.Context, end podworker.End) error {
	after, ok := s.ends[end.UID]
	if !ok {
		<-ctx.Done()
		return ctx.Err()
	}
	time.Sleep(after)
	return nil
}

func (s *slowSyncer) Terminated(_ context.Context, end podworker.End) error {
	s.waiters.Ended(end.UID)
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
				wanted, recorder, waiters := desired.New(), events.New("n", nil), &termination.Waiters{}
				pool := podworker.New(ctx, podworker.Options{})
				pool.SetSyncer(&slowSyncer{waiters: waiters, ends: c.ends})
				stopper := podstop.New(ctx, podstop.Options{
					Desired:  wanted,
					Workers:  pool,
					Waiters:  waiters,
					Recorder: recorder,
				})
				admissions := New(ctx, Options{Desired: wanted, Workers: pool, Stopper: stopper, Recorder: recorder})
				victim := testPod("victim", "1")
				victim.Spec.TerminationGracePeriodSeconds = ptr.To[int64](20)
				wanted.Put(victim, false)
				pool.Update(victim, "")
				synctest.Wait()
				if c.gone {
					pool.Stop("1", nil)
					synctest.Wait()
				}
				began := time.Now()
				admissions.makeRoom(ctx, testPod("critical", "2"),
					admission.Verdict{Victims: []*v1.Pod{victim}, Lack: v1.ResourceMemory})
				if took := time.Since(began); took != c.want {
					t.Errorf("makeRoom took %v of the simulated clock, want %v", took, c.want)
				}
				synctest.Wait()
				var m dto.Metric
				if err := admissions.preemptions.WithLabelValues("memory").Write(&m); err != nil {
					t.Fatal(err)
				}
				if got := m.GetCounter().GetValue(); got != c.preempted {
					t.Errorf("kubelet_preemptions of memory = %v, want %v", got, c.preempted)
				}
				exceeded := false
				for _, event := range recorder.List() {
					exceeded = exceeded ||
						event.Reason == "ExceededGracePeriod" && event.Message == termination.MessageExceededGrace
				}
				if exceeded != c.exceeded {
					t.Errorf("event ExceededGracePeriod: %t, want %t", exceeded, c.exceeded)
				}
				cancel()
				pool.Wait()
				stopper.Wait()
			})
		})
	}
}

// TestStoppedPodsCount: what a pod has that is being ended is not free before it has ended.
func TestStoppedPodsCount(t *testing.T) {
	wanted := desired.New()
	c := New(t.Context(), Options{Desired: wanted, Statuses: status.NewManager(nil), Allocations: asAsked{}})
	for _, uid := range []types.UID{"1", "2"} {
		wanted.Put(testPod(string(uid), uid), false)
		wanted.SetAdmission(uid, nil)
	}
	wanted.Stop("1", &status.Stopped{Reason: "Evicted"})
	if got := c.ActivePodsExcept("2"); len(got) != 1 || got[0].UID != "1" {
		t.Errorf("pods beside 2 = %v, want 1, which is being ended", got)
	}
}
