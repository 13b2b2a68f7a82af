package edged

import (
	"context"
	"errors"
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/pleg"
	"github.com/edgecore-io/edgecore/edged/podworker"
	"github.com/edgecore-io/edgecore/edged/runtime"
	"github.com/edgecore-io/edgecore/edged/runtime/fakecri"
	"github.com/edgecore-io/edgecore/edged/source"
	"github.com/edgecore-io/edgecore/edged/statusreport"
)

// onFakeRuntime has an agent work with a runtime in memory.
func onFakeRuntime(t *testing.T, e *Edged) *fakecri.Runtime {
	t.Helper()
	fake, client := fakecri.Direct()
	e.client = client
	e.runtime = runtime.New(runtime.Options{Client: client, Recorder: e.recorder, RootDir: t.TempDir(), PodLogsDir: t.TempDir(), ContainerLogsDir: t.TempDir()})
	e.pleg = pleg.New(e.runtime, nil, pleg.Options{})
	e.podStatus = e.newPodStatus(t.Context())
	return fake
}

// TestTerminateStopsSandboxes: a pod has not ended before its sandbox was stopped: until then its addresses and host ports are
// taken. One that an earlier run of the agent has reported as ended is left alone.
func TestTerminateStopsSandboxes(t *testing.T) {
	no := errors.New("no")
	for name, c := range map[string]struct {
		// dies: the sandbox is dead before. fails is how often it cannot be stopped: its network does not go.
		dies  bool
		fails int
		phase v1.PodPhase
		// want is the outcome of each call, tries how often the runtime is told to stop it.
		want  []error
		tries int
	}{
		"it runs":                              {want: []error{nil}, tries: 1},
		"it died":                              {dies: true, want: []error{nil}, tries: 1},
		"its network does not go at first":     {fails: 1, want: []error{no, nil}, tries: 2},
		"it died, its network does not go":     {dies: true, fails: 2, want: []error{no, no, nil}, tries: 3},
		"it is damaged, and left to garbage":   {dies: true, fails: 9, want: []error{no, no, nil}, tries: 3},
		"it is of a pod that was ended before": {dies: true, phase: v1.PodSucceeded, want: []error{nil}, tries: 0},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := admitting(t, t.Context())
			fake := onFakeRuntime(t, e)
			pod := podAsking("p", "1", source.API)
			e.statuses.Set(pod, v1.PodStatus{Phase: c.phase})
			made, err := e.client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: sandboxOf(pod)})
			if err != nil {
				t.Fatal(err)
			}
			if c.dies {
				if err := fake.KillSandbox(made.PodSandboxId); err != nil {
					t.Fatal(err)
				}
			}
			fake.FailAfter("StopPodSandbox", c.fails, no)
			for i, want := range c.want {
				if err := e.Terminate(t.Context(), podworker.End{UID: pod.UID, Pod: pod}); (err != nil) != (want != nil) {
					t.Errorf("Terminate, call %d: %v, want %v", i+1, err, want)
				}
			}
			if got := len(fake.Calls("StopPodSandbox")); got != c.tries {
				t.Errorf("the runtime was told to stop the sandbox %d times, want %d", got, c.tries)
			}
		})
	}
}

// sandboxOf is the configuration of a pod's sandbox, as far as the pod is known by it.
func sandboxOf(pod *v1.Pod) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID)},
		Labels: map[string]string{
			"io.kubernetes.pod.name":      pod.Name,
			"io.kubernetes.pod.namespace": pod.Namespace,
			"io.kubernetes.pod.uid":       string(pod.UID),
		},
	}
}

// noStatuses fails the test when a status is stored.
type noStatuses struct{ t *testing.T }

func (n noStatuses) ReportStatus(_ context.Context, pod *v1.Pod, _ v1.PodStatus) error {
	n.t.Errorf("status of pod %s is stored, want none", pod.Name)
	return nil
}

func (n noStatuses) KeepStatus(ctx context.Context, pod *v1.Pod, status v1.PodStatus) error {
	return n.ReportStatus(ctx, pod, status)
}

// TestEndOfPodWithoutWorker: nothing is kept of a pod that was rejected, or waited to start, and then removed.
func TestEndOfPodWithoutWorker(t *testing.T) {
	e, _ := admitting(t, t.Context())
	e.reporter = statusreport.New(statusreport.Options{Store: noStatuses{t}})
	pod := podAsking("p", "2", source.API)
	e.intake.Put(pod)
	if st, _ := e.statuses.Get("p"); st.Reason != "OutOfcpu" {
		t.Fatalf("reason of the pod = %q, want OutOfcpu", st.Reason)
	}
	e.reporter.PodStatus(pod, v1.PodStatus{Phase: v1.PodFailed})
	e.allocations.Allocated(pod)
	e.desired.Remove("p")
	if err := e.reportEnd(t.Context(), podworker.End{UID: "p", Removed: true}); err != nil {
		t.Fatal(err)
	}
	e.reporter.FlushAll(t.Context())
	if _, ok := e.statuses.Get("p"); ok {
		t.Error("the pod has a status after the end, want none")
	}
	forgotten := func() bool {
		other := podAsking("p", "1", source.API)
		return e.allocations.Allocated(other) == other
	}
	if !forgotten() {
		t.Error("the allocation of the pod is kept after the end, want it forgotten")
	}
	e.intake.PodForgotten("p") // callers that list pods may have asked for the allocation since
	e.allocations.Allocated(pod)
	e.intake.PodForgotten("p")
	if !forgotten() {
		t.Error("the allocation of the pod is kept after PodForgotten, want it forgotten")
	}
}
