package edged

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/pods/podworker"
	"github.com/edgecore-io/edgecore/edged/podstate/source"
)

// startedPods remembers which pods were handed to their workers.
type startedPods struct {
	mu   sync.Mutex
	uids []types.UID
}

func (s *startedPods) Sync(_ context.Context, pod *v1.Pod) podworker.SyncResult {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uids = append(s.uids, pod.UID)
	return podworker.SyncResult{}
}

func (s *startedPods) Terminate(context.Context, podworker.End) error { return nil }

func (s *startedPods) Terminated(context.Context, podworker.End) error { return nil }

func (s *startedPods) has(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, have := range s.uids {
		if have == uid {
			return true
		}
	}
	return false
}

// admitting returns an agent of one cpu that admits pods and does not run them, what its workers were given, and what
// stops it.
func admitting(t *testing.T) (*Edged, *startedPods, func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	m := moduleIn(t, deafBus{})
	m.opts.Allocatable = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}
	e := &Edged{opts: m.opts, state: m.state}
	if err := e.build(ctx); err != nil {
		t.Fatal(err)
	}
	s := &startedPods{}
	e.workers.SetSyncer(s)
	e.podstate.Ready.Start()
	return e, s, func() {
		cancel()
		e.workers.Wait()
		if err := e.containers.Client.Close(); err != nil {
			t.Error(err)
		}
	}
}

func asking(cpu string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "1"}}
	pod.Spec.Containers = []v1.Container{{
		Name:      "main",
		Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}},
	}}
	return pod
}

// podAsking is a pod that asks for cpu.
func podAsking(name, cpu string, from string) *v1.Pod {
	pod := asking(cpu)
	pod.Name, pod.UID = name, types.UID(name)
	pod.Annotations = map[string]string{source.AnnotationSource: from}
	return pod
}

// TestRejectedPodStays: a pod of the API server that was reported Failed never starts, whatever is said of it later and
// however much room there is. A static pod, which nobody replaces, starts when there is room.
func TestRejectedPodStays(t *testing.T) {
	for from, wantStart := range map[string]bool{source.API: false, "file": true} {
		t.Run(from, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, workers, stop := admitting(t)
				defer stop()
				first, second := podAsking("first", "1", from), podAsking("second", "1", from)
				if from == source.API {
					e.pods.Intake.Put(first)
					e.pods.Intake.Put(second)
				} else {
					e.podstate.Desired.SetStatic([]*v1.Pod{first, second})
					e.pods.Intake.Start()
				}
				synctest.Wait()
				got, _ := e.podstate.Statuses.Get("second")
				if got.Phase != v1.PodFailed || got.Reason != "OutOfcpu" || !workers.has("first") ||
					workers.has("second") {
					t.Fatalf("second: %s %s, handed to a worker %t; want Failed OutOfcpu, false", got.Phase, got.Reason,
						workers.has("second"))
				}
				e.podstate.Desired.Remove("first")
				e.podstate.Desired.Forget("first")
				e.pods.Admissions.RetryRejected()
				if from == source.API {
					again := second.DeepCopy()
					again.Status.Phase, again.ResourceVersion = v1.PodFailed, "2" // as the API server sends it back
					e.pods.Intake.Put(again)
				}
				e.pods.Intake.Start() // the runtime is back
				synctest.Wait()
				got, _ = e.podstate.Statuses.Get("second")
				if started := workers.has("second"); started != wantStart || !wantStart && got.Reason != "OutOfcpu" {
					t.Errorf("second when there is room: handed to a worker %t, reason %q; want %t", started,
						got.Reason, wantStart)
				}
			})
		})
	}
}

// TestRejectedBeforeRestart: after a restart of the agent a static pod that was rejected is judged again, and one of
// the API server stays Failed. A static pod that has ended stays as it ended.
func TestRejectedBeforeRestart(t *testing.T) {
	rejected := v1.PodStatus{Phase: v1.PodFailed, Reason: "OutOfcpu", Message: "Pod was rejected: no"}
	ended := v1.PodStatus{Phase: v1.PodFailed, ContainerStatuses: []v1.ContainerStatus{{Name: "main"}}}
	for name, c := range map[string]struct {
		from   string
		before v1.PodStatus
		want   v1.PodPhase
	}{
		"static, rejected":     {"file", rejected, ""},
		"static, ended":        {"file", ended, v1.PodFailed},
		"API server, rejected": {source.API, rejected, v1.PodFailed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, _, stop := admitting(t)
				defer stop()
				e.podstate.Statuses.Restore(map[types.UID]v1.PodStatus{"p": c.before})
				pod := podAsking("p", "1", c.from)
				if c.from == source.API {
					e.podstate.Desired.Put(pod, true)
				} else {
					e.podstate.Desired.SetStatic([]*v1.Pod{pod})
				}
				e.pods.Admissions.Admit("p")
				if got := e.podstate.Statuses.Phase("p"); got != c.want {
					t.Errorf("phase after the restart = %q, want %q", got, c.want)
				}
			})
		})
	}
}
