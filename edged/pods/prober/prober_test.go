package prober

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// fixture is a runtime in which commands answer as told, and remembers what it was asked and what was told.
type fixture struct {
	events.Interface
	mu      sync.Mutex
	answers map[string]func(ctx context.Context) (int32, error) // by the first word of the command
	asked   []string                                            // "seconds since the start: container command"
	list    []string                                            // the events
	changed []string
	began   time.Time
}

func (w *fixture) ExecSync(
	ctx context.Context, in *runtimeapi.ExecSyncRequest, _ ...grpc.CallOption,
) (*runtimeapi.ExecSyncResponse, error) {
	w.mu.Lock()
	w.asked = append(w.asked, fmt.Sprintf("%.1f: %s %s", time.Since(w.began).Seconds(), in.ContainerId,
		strings.Join(in.Cmd, " ")))
	answer := w.answers[in.Cmd[0]]
	w.mu.Unlock()
	if answer == nil {
		return &runtimeapi.ExecSyncResponse{}, nil
	}
	code, err := answer(ctx)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ExecSyncResponse{ExitCode: code, Stdout: []byte("out "), Stderr: []byte("err")}, nil
}

func (w *fixture) ContainerEventf(_ *v1.Pod, c *v1.Container, eventType, reason, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, c.Name+" "+eventType+" "+reason+" "+fmt.Sprintf(format, args...))
}

func (w *fixture) told(uid types.UID, ending bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changed = append(w.changed, fmt.Sprintf("%.1f: %s %v", time.Since(w.began).Seconds(), uid, ending))
}

func (w *fixture) answer(command string, code int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answers[command] = func(context.Context) (int32, error) { return code, nil }
}

// take returns what was asked since the last call.
func (w *fixture) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	asked := w.asked
	w.asked = nil
	return asked
}

// inWorld runs body beside a prober, in time that only passes when all sleep.
func inWorld(t *testing.T, body func(w *fixture, p *Prober)) {
	synctest.Test(t, func(t *testing.T) {
		w := &fixture{answers: map[string]func(context.Context) (int32, error){}, began: time.Now()}
		p := New(Options{Exec: w, Recorder: w, Changed: w.told})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := p.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		body(w, p)
		cancel()
		wg.Wait()
	})
}

func command(words ...string) v1.ProbeHandler {
	return v1.ProbeHandler{Exec: &v1.ExecAction{Command: words}}
}

func every(period int32, words ...string) *v1.Probe {
	return &v1.Probe{
		ProbeHandler:     command(words...),
		PeriodSeconds:    period,
		TimeoutSeconds:   1,
		SuccessThreshold: 1,
		FailureThreshold: 2,
	}
}

func podOf(containers ...v1.Container) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "1"},
		Spec:       v1.PodSpec{Containers: containers},
	}
}

// seen is a snapshot in which containers run, written "name" or "name=id".
func seen(names ...string) *observed.Pod {
	obs := &observed.Pod{UID: "1", Detailed: true}
	for _, text := range names {
		name, id, ok := strings.Cut(text, "=")
		if !ok {
			id = name + "-id"
		}
		obs.Containers = append(obs.Containers, &observed.Container{
			ID:        id,
			Name:      name,
			State:     runtimeapi.ContainerState_CONTAINER_RUNNING,
			StartedAt: time.Now(),
		})
	}
	return obs
}

func TestStartupGoesFirst(t *testing.T) {
	inWorld(t, func(w *fixture, p *Prober) {
		pod := podOf(v1.Container{
			Name:           "a",
			StartupProbe:   every(2, "begun"),
			ReadinessProbe: every(4, "ready"),
			LivenessProbe:  every(4, "alive"),
		})
		obs := seen("a")
		w.answer("begun", 1)
		if diff := cmp.Diff(observed.Probes{"a-id": {}}, p.Sync(pod, obs, View{})); diff != "" {
			t.Errorf("Sync() mismatch (-want +got):\n%s", diff)
		}
		time.Sleep(2 * time.Second)
		w.answer("begun", 0)
		time.Sleep(time.Second + time.Millisecond)
		synctest.Wait()
		if diff := cmp.Diff([]string{"1.0: a-id begun", "3.0: a-id begun", "3.0: a-id alive", "3.0: a-id ready"},
			sorted(w.take())); diff != "" {
			t.Errorf("calls mismatch (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(observed.Probes{"a-id": {Started: true, Ready: true}},
			p.Sync(pod, obs, View{})); diff != "" {
			t.Errorf("Sync() mismatch (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"3.0: 1 false", "3.0: 1 false"}, w.changed); diff != "" {
			t.Errorf("changes mismatch (-want +got):\n%s", diff)
		}
		time.Sleep(4 * time.Second)
		if diff := cmp.Diff([]string{"7.0: a-id alive", "7.0: a-id ready"}, sorted(w.take())); diff != "" {
			t.Errorf("calls of a startup probe that has succeeded mismatch (-want +got):\n%s", diff)
		}
	})
}

func sorted(list []string) []string {
	for i := range list {
		for j := i; j > 0 && list[j][:4] == list[j-1][:4] && list[j] < list[j-1] &&
			!strings.Contains(list[j-1], "begun"); j-- {
			list[j], list[j-1] = list[j-1], list[j]
		}
	}
	return list
}

func TestFailuresStopAContainer(t *testing.T) {
	inWorld(t, func(w *fixture, p *Prober) {
		live := every(3, "alive")
		live.TerminationGracePeriodSeconds = ptr.To(int64(7))
		pod := podOf(v1.Container{Name: "a", LivenessProbe: live},
			v1.Container{Name: "b", StartupProbe: every(1, "begun")})
		w.answer("alive", 1)
		w.answer("begun", 1)
		if diff := cmp.Diff(observed.Probes{"a-id": {Started: true, Ready: true}, "b-id": {}},
			p.Sync(pod, seen("a", "b"), View{})); diff != "" {
			t.Errorf("Sync() mismatch (-want +got):\n%s", diff)
		}
		time.Sleep(20 * time.Second)
		want := observed.Probes{
			"a-id": {
				Started: true, Ready: true, Failed: &observed.ProbeFailure{
					Message: "Container a failed liveness probe, will be restarted", Grace: ptr.To(int64(7)),
				},
			},
			"b-id": {Failed: &observed.ProbeFailure{Message: "Container b failed startup probe, will be restarted"}},
		}
		if diff := cmp.Diff(want, p.Sync(pod, seen("a", "b"), View{})); diff != "" {
			t.Errorf("Sync() mismatch (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"0.5: b-id begun", "1.0: a-id alive", "1.5: b-id begun", "4.0: a-id alive"},
			w.take()); diff != "" {
			t.Errorf("calls after a container has failed mismatch (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"1.5: 1 false", "4.0: 1 false"}, w.changed); diff != "" {
			t.Errorf("changes mismatch (-want +got):\n%s", diff)
		}
		if want := "a Warning Unhealthy Liveness probe failed: out err"; w.list[1] != want {
			t.Errorf("events %q, want %q", w.list, want)
		}
		never := pod.DeepCopy()
		never.Spec.RestartPolicy = v1.RestartPolicyNever
		if got := p.Sync(never, seen("a", "b"),
			View{})["a-id"].Failed.Message; got != "Container a failed liveness probe" {
			t.Errorf("a container that is not started again: %q, want \"Container a failed liveness probe\"", got)
		}
		// The container that takes its place starts again.
		got := p.Sync(pod, seen("a=new", "b=new2"), View{})
		if diff := cmp.Diff(observed.Probes{"new": {Started: true, Ready: true}, "new2": {}}, got); diff != "" {
			t.Errorf("Sync() mismatch (-want +got):\n%s", diff)
		}
	})
}

// TestRestart: the previous status counts for a container that still runs, and for no other.
func TestRestart(t *testing.T) {
	status := func(id string, started, ready bool) v1.PodStatus {
		return v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{
			Name: "a", ContainerID: "containerd://" + id, Started: &started, Ready: ready,
			State: v1.ContainerState{Running: &v1.ContainerStateRunning{}},
		}}}
	}
	pod := podOf(v1.Container{
		Name:           "a",
		StartupProbe:   every(2, "begun"),
		ReadinessProbe: every(10, "ready"),
		LivenessProbe:  every(10, "alive"),
	})
	for name, c := range map[string]struct {
		before v1.PodStatus
		want   observed.Probed
	}{
		"was ready":         {status("a-id", true, true), observed.Probed{Started: true, Ready: true}},
		"was not ready":     {status("a-id", true, false), observed.Probed{Started: true}},
		"was not started":   {status("a-id", false, false), observed.Probed{}},
		"another container": {status("b-id", true, true), observed.Probed{}},
		"no status":         {v1.PodStatus{}, observed.Probed{}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *fixture, p *Prober) {
				obs := seen("a")
				obs.Containers[0].StartedAt = time.Now().Add(-time.Second) // its age does not matter
				if diff := cmp.Diff(observed.Probes{"a-id": c.want},
					p.Sync(pod, obs, View{Before: c.before})); diff != "" {
					t.Errorf("Sync() mismatch (-want +got):\n%s", diff)
				}
				time.Sleep(10*time.Second - time.Nanosecond) // the last moment that the first probe may have drawn
				synctest.Wait()
				if asked := strings.Join(w.take(), "\n"); !strings.Contains(asked, "alive") ||
					!strings.Contains(asked, "ready") {
					t.Errorf("probes within one period = %q, want alive and ready", asked)
				}
				for _, told := range w.changed {
					if c.want.Ready {
						t.Errorf("change after a restart = %q, want none", told)
					}
				}
				// One failure of two changes nothing.
				w.answer("ready", 1)
				time.Sleep(10 * time.Second)
				if got := p.Sync(pod, obs, View{})["a-id"]; !got.Ready {
					t.Errorf("Sync after one failure of two = %+v, want ready", got)
				}
				// a first probe of the last beat has its second only now
				time.Sleep(10*time.Second + 100*time.Millisecond)
				if got := p.Sync(pod, obs, View{})["a-id"]; got.Ready {
					t.Errorf("Sync after two failures of two = %+v, want not ready", got)
				}
			})
		})
	}
}

// TestRestartSpreads: the first probes after a restart do not all come at once.
func TestRestartSpreads(t *testing.T) {
	inWorld(t, func(w *fixture, p *Prober) {
		for i := range 100 {
			pod := podOf(v1.Container{Name: "a", ReadinessProbe: every(10, "ready")})
			pod.UID = types.UID(fmt.Sprint(i))
			before := v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{
				Name:        "a",
				ContainerID: "x://a-id",
				Ready:       true,
				State:       v1.ContainerState{Running: &v1.ContainerStateRunning{}},
			}}}
			p.Sync(pod, seen("a"), View{Before: before})
		}
		time.Sleep(5 * time.Second)
		if n := len(w.take()); n < 20 || n > 80 {
			t.Errorf("%d of 100 in the first half of the period, want at least 20, at most 80", n)
		}
	})
}

// TestReadySoon: a container that was never ready is asked more often at first, and none once it was.
func TestReadySoon(t *testing.T) {
	inWorld(t, func(w *fixture, p *Prober) {
		pod := podOf(v1.Container{Name: "a", ReadinessProbe: every(3, "ready")})
		w.answer("ready", 1)
		p.Sync(pod, seen("a"), View{})
		time.Sleep(7500 * time.Millisecond)
		if diff := cmp.Diff([]string{"0.1: a-id ready", "0.3: a-id ready", "0.7: a-id ready", "1.5: a-id ready",
			"3.1: a-id ready", "6.2: a-id ready"}, w.take()); diff != "" {
			t.Errorf("calls mismatch (-want +got):\n%s", diff)
		}
		if len(w.changed) != 0 {
			t.Errorf("not ready is no news of what never was: %v, want none", w.changed)
		}
	})
}

// TestSuccessesTakeTime: successes that are to come in a row come a period apart.
func TestSuccessesTakeTime(t *testing.T) {
	inWorld(t, func(w *fixture, p *Prober) {
		spec := every(3, "ready")
		spec.SuccessThreshold = 3
		p.Sync(podOf(v1.Container{Name: "a", ReadinessProbe: spec}), seen("a"), View{})
		time.Sleep(7 * time.Second)
		if diff := cmp.Diff([]string{"0.1: a-id ready", "3.2: a-id ready", "6.2: a-id ready"}, w.take()); diff != "" {
			t.Errorf("calls mismatch (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"6.2: 1 false"}, w.changed); diff != "" {
			t.Errorf("changes mismatch (-want +got):\n%s", diff)
		}
	})
}

func TestInitialDelay(t *testing.T) {
	inWorld(t, func(w *fixture, p *Prober) {
		ready := every(10, "ready")
		ready.InitialDelaySeconds = 8
		pod := podOf(v1.Container{Name: "a", ReadinessProbe: ready})
		obs := seen("a")
		obs.Containers[0].StartedAt = time.Now().Add(-3 * time.Second)
		p.Sync(pod, obs, View{})
		// A clock that went back since does not make it longer.
		other := seen("a")
		other.Containers[0].StartedAt = time.Now().Add(time.Hour)
		second := podOf(v1.Container{Name: "a", ReadinessProbe: ready})
		second.UID = "2"
		p.Sync(second, other, View{})
		time.Sleep(9 * time.Second)
		if diff := cmp.Diff([]string{"5.0: a-id ready", "8.0: a-id ready"}, w.take()); diff != "" {
			t.Errorf("calls mismatch (-want +got):\n%s", diff)
		}
	})
}

// TestSlowDelaysNobody: attempts that hang hold up no other, and are not doubled.
func TestSlowDelaysNobody(t *testing.T) {
	inWorld(t, func(w *fixture, p *Prober) {
		w.answers["hang"] = func(ctx context.Context) (int32, error) {
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Second):
			}
			return 0, status.Error(codes.DeadlineExceeded, "too slow")
		}
		pod := podOf(v1.Container{Name: "a", LivenessProbe: every(1, "hang")},
			v1.Container{Name: "b", LivenessProbe: every(1, "quick")})
		pod.Spec.Containers[0].LivenessProbe.FailureThreshold = 9
		p.Sync(pod, seen("a", "b"), View{})
		time.Sleep(6 * time.Second)
		hung, quick := 0, 0
		for _, a := range w.take() {
			if strings.HasSuffix(a, "hang") {
				hung++
			} else {
				quick++
			}
		}
		if hung != 2 || quick != 6 {
			t.Errorf("%d attempts that hang, %d of the quick one; want 2 and 6", hung, quick)
		}
		if want :=
			`a Warning Unhealthy Liveness probe failed: command timed out: "hang" timed out after 1s`; w.list[0] !=
			want {
			t.Errorf("%q, want %q", w.list[0], want)
		}
	})
}

// TestEnding: while a pod ends it is not killed by its probes, and its readiness is still told.
func TestEnding(t *testing.T) {
	inWorld(t, func(w *fixture, p *Prober) {
		pod := podOf(v1.Container{Name: "a", ReadinessProbe: every(1, "ready"), LivenessProbe: every(1, "alive")})
		p.Sync(pod, seen("a"), View{})
		time.Sleep(2 * time.Second)
		w.answer("ready", 1)
		w.answer("alive", 1)
		w.take()
		p.StopLivenessAndStartup("1")
		p.Sync(pod, seen("a"), View{})
		time.Sleep(5 * time.Second)
		if asked := strings.Join(w.take(), "\n"); strings.Contains(asked, "alive") ||
			!strings.Contains(asked, "ready") {
			t.Errorf("probes after End = %q, want ready and no alive", asked)
		}
		if diff := cmp.Diff(observed.Probes{"a-id": {Started: true}}, p.Sync(pod, seen("a"), View{})); diff != "" {
			t.Errorf("Sync() mismatch (-want +got):\n%s", diff)
		}
		if last := w.changed[len(w.changed)-1]; !strings.HasSuffix(last, " true") {
			t.Errorf("told %q, want the last to be true", w.changed)
		}
		p.Forget("1")
		time.Sleep(5 * time.Second)
		if asked := w.take(); len(asked) > 0 || len(p.queue) > 0 || len(p.pods) > 0 {
			t.Errorf("after Forget: probes %q, %d queued, %d pods, want none", asked, len(p.queue), len(p.pods))
		}
	})
}

// TestUnlearned: an error of the runtime is no verdict; it is tried again at once, and told once.
func TestUnlearned(t *testing.T) {
	inWorld(t, func(w *fixture, p *Prober) {
		w.answers["broken"] = func(context.Context) (int32, error) { return 0, fmt.Errorf("no such program") }
		w.answers["away"] = func(context.Context) (int32, error) { return 0, status.Error(codes.Unavailable, "down") }
		pod := podOf(v1.Container{Name: "a", LivenessProbe: every(10, "broken")},
			v1.Container{Name: "b", LivenessProbe: every(10, "away")})
		p.Sync(pod, seen("a", "b"), View{})
		time.Sleep(5 * time.Second)
		if n := len(w.take()); n != 2*tries {
			t.Errorf("%d calls, want %d", n, 2*tries)
		}
		if diff := cmp.Diff([]string{
			"a Warning Unhealthy Liveness probe errored and resulted in unknown state: no such program",
		}, w.list); diff != "" {
			t.Errorf("events mismatch (-want +got):\n%s", diff)
		}
		if len(w.changed) > 0 {
			t.Errorf("told %q, want none", w.changed)
		}
	})
}

// TestWhoIsProbed: containers and sidecars; not init containers that end, nor what does not run.
func TestWhoIsProbed(t *testing.T) {
	inWorld(t, func(w *fixture, p *Prober) {
		pod := podOf(v1.Container{Name: "a", LivenessProbe: every(1, "a")},
			v1.Container{Name: "idle", LivenessProbe: every(1, "idle")}, v1.Container{Name: "plain"})
		pod.Spec.InitContainers = []v1.Container{
			{Name: "side", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways), StartupProbe: every(1, "side")},
			{Name: "init", StartupProbe: every(1, "init")},
		}
		got := p.Sync(pod, seen("a", "side", "init", "plain"), View{})
		if diff := cmp.Diff(observed.Probes{"a-id": {Started: true, Ready: true}, "side-id": {}}, got); diff != "" {
			t.Errorf("Sync() mismatch (-want +got):\n%s", diff)
		}
		p.Sync(pod, seen("side"), View{})
		time.Sleep(1800 * time.Millisecond)
		if diff := cmp.Diff([]string{"0.5: side-id side"}, w.take()); diff != "" {
			t.Errorf("calls mismatch (-want +got):\n%s", diff)
		}
	})
}
