package podsync

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/pleg"
	"github.com/edgecore-io/edgecore/edged/containers/runtime"
	"github.com/edgecore-io/edgecore/edged/containers/runtime/fakecri"
	"github.com/edgecore-io/edgecore/edged/containers/runtimelimit"
	"github.com/edgecore-io/edgecore/edged/pods/podworker"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/source"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
)

// TestTerminateStopsSandboxes: a pod ends when its sandbox was stopped, because its addresses and host ports are
// in use until then. A pod that an earlier run of the agent has reported as ended is left alone.
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
			f, pod := newFixture(t), newPod()
			fake, client := fakecri.Direct()
			agent := runtime.New(runtime.Options{
				Client:           client,
				Recorder:         f.opts.Recorder,
				RootDir:          t.TempDir(),
				PodLogsDir:       t.TempDir(),
				ContainerLogsDir: t.TempDir(),
			})
			f.opts.Runtime, f.opts.PLEG = agent, pleg.New(agent, nil, pleg.Options{})
			f.opts.Statuses.Set(pod, v1.PodStatus{Phase: c.phase})
			made, err := client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: sandboxOf(pod)})
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
				if err := f.Terminate(t.Context(), podworker.End{
					UID: pod.UID, Pod: pod,
				}); (err != nil) != (want != nil) {
					t.Errorf("Terminate, call %d: %v, want %v", i+1, err, want)
				}
			}
			if got := len(fake.Calls("StopPodSandbox")); got != c.tries {
				t.Errorf("the runtime was told to stop the sandbox %d times, want %d", got, c.tries)
			}
		})
	}
}

// TestTerminateOfStoppedPodsNeverWaits: calls that end an evicted pod do not wait for the limit.
func TestTerminateOfStoppedPodsNeverWaits(t *testing.T) {
	for name, why := range map[string]*status.Stopped{"evicted": {Reason: "Evicted"}, "deleted": nil} {
		synctest.Test(t, func(t *testing.T) {
			f, pod, limiter := newFixture(t), newPod(), runtimelimit.New(1)
			f.stopper.why = why
			f.pleg.pod = &observed.Pod{UID: pod.UID, Sandboxes: []*observed.Sandbox{{ID: "s", Ready: true}}}
			var wg sync.WaitGroup
			for range 2 { // all that it works on at once
				wg.Go(func() {
					_ = limiter.Do(t.Context(), runtimelimit.StopPodSandbox, func() error {
						time.Sleep(time.Second)
						return nil
					})
				})
			}
			synctest.Wait()
			began := time.Now()
			var waited time.Duration
			f.runtime.kill = func(ctx context.Context) {
				_ = limiter.Do(ctx, runtimelimit.StopContainer, func() error {
					waited = time.Since(began)
					return nil
				})
			}
			if err := f.Terminate(t.Context(), podworker.End{UID: pod.UID, Pod: pod}); err != nil {
				t.Errorf("%s: Terminate = %v, want nil", name, err)
			}
			if (waited > 0) != (why == nil) {
				t.Errorf("%s: waited for %v; want a wait: %t", name, waited, why == nil)
			}
			wg.Wait()
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

// TestTerminated: everything that a pod held is released, and its containers, folder and status only when the pod
// goes. A deletion is reported before they are.
func TestTerminated(t *testing.T) {
	released := []string{"remove cgroup", "release user namespace", "free devices", "images used"}
	first := []string{"forget probes", "terminated status", "tear down volumes", "forget inputs"}
	calls := func(parts ...[]string) (all []string) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	gone := []string{"remove containers", "refresh"}
	concluded := []string{"conclude status", "freed"}
	static := newPod()
	static.Annotations = map[string]string{source.AnnotationSource: "file"}
	deleted := newPod()
	deleted.DeletionTimestamp = &metav1.Time{}
	for name, c := range map[string]struct {
		end  podworker.End
		want []string
	}{
		"finished": {podworker.End{UID: "1", Pod: newPod()}, calls(first, released, concluded)},
		"removed": {
			podworker.End{UID: "1", Pod: newPod(), Removed: true},
			calls(first, gone, released, concluded,
				[]string{"remove folder", "drop report", "forget allocation", "forget stored status"}),
		},
		"static, removed": {
			podworker.End{UID: "1", Pod: static, Removed: true},
			calls(first, gone, released, concluded,
				[]string{"remove folder", "drop report", "forget allocation", "forget stored status"}),
		},
		"deleted": {
			podworker.End{UID: "1", Pod: deleted, Deleted: true},
			calls(first, released, concluded, []string{"flush report", "report deleted"}, gone,
				[]string{"remove folder"}),
		},
		"orphan": {
			podworker.End{UID: "1", Removed: true},
			calls([]string{"forget probes", "tear down volumes", "forget inputs"}, gone, released,
				[]string{"freed", "remove folder"}),
		},
	} {
		f := newFixture(t)
		if err := f.Terminated(t.Context(), c.end); err != nil {
			t.Errorf("%s: %v, want no error", name, err)
		}
		if diff := cmp.Diff(c.want, f.list); diff != "" {
			t.Errorf("%s: calls (-want +got):\n%s", name, diff)
		}
	}
}

// TestTerminatedFails: a step that fails ends the attempt, and nobody is told that the pod has ended.
func TestTerminatedFails(t *testing.T) {
	no := errors.New("no")
	for _, step := range []string{
		"tear down volumes", "remove containers", "refresh", "remove cgroup", "release user namespace",
	} {
		f := newFixture(t)
		f.fail[step] = no
		err := f.Terminated(t.Context(), podworker.End{UID: "1", Pod: newPod(), Removed: true})
		if last := f.list[len(f.list)-1]; !errors.Is(err, no) || last != step {
			t.Errorf("%s fails: error %v, last call %q; want %v, %q", step, err, last, no, step)
		}
	}
}

// TestDeletedPodIsRemoved: a pod whose end was reported is removed from the runtime when no other calls are made. If
// that fails, the end is not reported again, and the folder stays.
func TestDeletedPodIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, pod, limiter := newFixture(t), newPod(), runtimelimit.New(1)
		pod.DeletionTimestamp = &metav1.Time{}
		other := runtimelimit.WithOwner(t.Context(), runtimelimit.OwnerOf("2", nil))
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = limiter.Do(other, runtimelimit.StopPodSandbox, func() error {
				time.Sleep(time.Second)
				return nil
			})
		})
		synctest.Wait()
		began := time.Now()
		var waited time.Duration
		f.runtime.remove = func(ctx context.Context) {
			_ = limiter.Do(ctx, runtimelimit.RemoveContainer, func() error {
				waited = time.Since(began)
				return nil
			})
		}
		f.fail["remove containers"] = errors.New("no")
		if err := f.Terminated(t.Context(), podworker.End{UID: pod.UID, Pod: pod, Deleted: true}); err != nil {
			t.Errorf("Terminated = %v, want nil", err)
		}
		if waited != time.Second {
			t.Errorf("removed after %v, want 1 s: when the sandbox of another pod has stopped", waited)
		}
		if got := f.list[len(f.list)-1]; got != "remove containers" {
			t.Errorf("last call %q, want none after the one that failed: the folder stays", got)
		}
		wg.Wait()
	})
}

// TestTerminateKeepsTrying: containers that still run after the runtime was told to stop them are an error.
func TestTerminateKeepsTrying(t *testing.T) {
	for name, c := range map[string]struct {
		killErr error
	}{"killed": {nil}, "kill fails": {errors.New("no")}} {
		f := newFixture(t)
		f.fail["kill"] = c.killErr
		f.pleg.pod = &observed.Pod{UID: "1", Containers: []*observed.Container{
			{ID: "c", Name: "main", State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		}}
		err := f.Terminate(t.Context(), podworker.End{UID: "1", Pod: newPod()})
		if err == nil || c.killErr != nil && !errors.Is(err, c.killErr) {
			t.Errorf("%s: error %v, want one with %v", name, err, c.killErr)
		}
		want := 0
		if c.killErr != nil {
			want = 1
		}
		if got := f.messages("FailedKillPod"); len(got) != want {
			t.Errorf("%s: events %q, want %d", name, got, want)
		}
	}
}

// TestEndWithoutWorker: nothing is kept of a pod that was rejected, or waited to start, and was then removed.
func TestEndWithoutWorker(t *testing.T) {
	f, pod := newFixture(t), newPod()
	f.opts.Desired.Put(pod, false)
	f.opts.Statuses.Set(pod, v1.PodStatus{Phase: v1.PodFailed})
	f.opts.Desired.Remove(pod.UID)
	if err := f.reportEnd(t.Context(), podworker.End{UID: pod.UID, Removed: true}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"drop report", "forget allocation", "forget stored status"}, f.list); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if _, ok := f.opts.Statuses.Get(pod.UID); ok {
		t.Error("the pod has a status after the end, want none")
	}
}
