package differential

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func waitingFor(reason string) v1.ContainerState {
	return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}
}

func endedWith(code int32, reason string, at time.Time) v1.ContainerState {
	return v1.ContainerState{
		Terminated: &v1.ContainerStateTerminated{ExitCode: code, Reason: reason, FinishedAt: metav1.NewTime(at)},
	}
}

func runningSince(at time.Time) v1.ContainerState {
	return v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(at)}}
}

func podOf(phase v1.PodPhase, deleted bool, list ...v1.ContainerStatus) *v1.Pod {
	pod := &v1.Pod{
		Spec:   v1.PodSpec{RestartPolicy: v1.RestartPolicyNever},
		Status: v1.PodStatus{Phase: phase, ContainerStatuses: list},
	}
	for _, c := range list {
		pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: c.Name})
	}
	if deleted {
		pod.DeletionTimestamp = &metav1.Time{}
	}
	return pod
}

// TestFacts: what is taken from the states of a pod is the same however often its containers restart.
func TestFacts(t *testing.T) {
	var at time.Time
	state := func(restarts int32, state, last v1.ContainerState) v1.ContainerStatus {
		id := ""
		if state.Waiting == nil {
			id = "x"
		}
		return v1.ContainerStatus{
			Name:                 "c",
			RestartCount:         restarts,
			State:                state,
			LastTerminationState: last,
			ContainerID:          id,
		}
	}
	none, exit3 := v1.ContainerState{}, endedWith(3, "Error", at)
	for name, test := range map[string]struct {
		states []*v1.Pod
		want   Trace
	}{
		"restarts, seen in between": {
			[]*v1.Pod{
				podOf("Running", false, state(0, runningSince(at), none)),
				podOf("Running", false, state(0, exit3, none)),
				podOf("Running", false, state(1, runningSince(at), exit3)),
				podOf("Failed", true, state(1, endedWith(0, "Completed", at), exit3)),
			},
			Trace{
				"facts/phase": {"Running"}, "facts/reason": {""}, "facts/c/started": {"true"},
				"facts/c/restarted": {"true"}, "facts/c/first-end": {`3 Error ""`},
			},
		},
		"restarts, seen later": {
			[]*v1.Pod{
				podOf("Running", false, state(2, waitingFor("CrashLoopBackOff"), exit3)),
				podOf("Running", true, state(3, exit3, exit3)),
			},
			Trace{
				"facts/phase": {"Running"}, "facts/reason": {""}, "facts/c/started": {"true"},
				"facts/c/restarted": {"true"}, "facts/c/first-end": {`3 Error ""`},
			},
		},
		"ends when it is deleted": {
			[]*v1.Pod{
				podOf("Running", false, state(0, runningSince(at), none)),
				podOf("Failed", true, state(0, endedWith(137, "Error", at), none)),
			},
			Trace{
				"facts/phase": {"Running"}, "facts/reason": {""}, "facts/c/started": {"true"},
				"facts/c/first-end": {`137 Error ""`},
			},
		},
		"cannot start": {
			[]*v1.Pod{
				podOf("Pending", false, state(0, waitingFor("ErrImagePull"), none)),
				podOf("Pending", false, state(0, waitingFor("ImagePullBackOff"), none)),
			},
			Trace{"facts/phase": {"Pending"}, "facts/reason": {""}, "facts/c/waits": {"ErrImagePull"}},
		},
	} {
		got := Trace{}
		addFacts(got, test.states, Names{})
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: facts (-want +got):\n%s", name, diff)
		}
	}
}

// TestWithoutChance: a fact, a configuration of the runtime or something left that differs is found; when a container
// ran is not.
func TestWithoutChance(t *testing.T) {
	left := Trace{
		"facts/c/first-end":                                {"3 Error"},
		"cri/CreateContainer/c.config.image.image":         {"a"},
		"cri/CreateContainer/d.config.image.image":         {"a"},
		"cri/order/c":                                      {"StopContainer"},
		"pod.status.containerStatuses[c].restartCount":     {"0", "1"},
		"pod.status.qosClass":                              {"Burstable"},
		`events/"Warning","Failed","kubelet","","no"`:      {"there"},
		`events/"Warning","Unhealthy","kubelet","","slow"`: {"there"},
	}
	right := Trace{
		"facts/c/first-end":                            {"4 Error"},
		"cri/CreateContainer/c.config.image.image":     {"b"},
		"left/cgroup":                                  {"there"},
		"pod.status.containerStatuses[c].restartCount": {"0"},
		"pod.status.qosClass":                          {"BestEffort"},
	}
	l, r := Case{Chance: true}.kept(left, right)
	var got []string
	for _, d := range Compare([]Trace{l}, []Trace{r}) {
		got = append(got, d.Path)
	}
	want := []string{
		"cri/CreateContainer/c.config.image.image",
		`events/"Warning","Failed","kubelet","","no"`,
		"facts/c/first-end",
		"left/cgroup",
		"pod.status.qosClass",
	}
	if !slices.Equal(got, want) {
		t.Errorf("paths that differ = %q, want %q", got, want)
	}
}

func TestLived(t *testing.T) {
	now := time.Now()
	status := func(state v1.ContainerState) v1.ContainerStatus { return v1.ContainerStatus{Name: "c", State: state} }
	restarted := v1.ContainerStatus{RestartCount: 1, State: waitingFor("CrashLoopBackOff")}
	for name, test := range map[string]struct {
		pod  *v1.Pod
		want bool
	}{
		"no status":        {podOf("Pending", false), false},
		"starts":           {podOf("Pending", false, status(waitingFor("ContainerCreating"))), false},
		"cannot start":     {podOf("Pending", false, status(waitingFor("CreateContainerConfigError"))), true},
		"runs":             {podOf("Running", false, status(runningSince(now.Add(-time.Second)))), false},
		"has run for long": {podOf("Running", false, status(runningSince(now.Add(-time.Minute)))), true},
		"has ended":        {podOf("Running", false, status(endedWith(1, "Error", now))), false},
		"all stay ended":   {podOf("Running", false, status(endedWith(1, "Error", now.Add(-time.Minute)))), false},
		"one stays ended": {
			podOf("Running", false, status(endedWith(1, "Error", now.Add(-time.Minute))),
				status(runningSince(now.Add(-time.Minute)))),
			true,
		},
		"was restarted":          {podOf("Running", false, restarted), true},
		"was restarted, one not": {podOf("Running", false, restarted, status(runningSince(now))), false},
		"the pod has ended":      {podOf("Failed", false, status(endedWith(1, "Error", now))), true},
	} {
		if got := lived(test.pod, now); got != test.want {
			t.Errorf("%s: lived = %v, want %v", name, got, test.want)
		}
	}
	always := podOf("Running", false, status(endedWith(1, "Error", now.Add(-time.Minute))))
	always.Spec.RestartPolicy = v1.RestartPolicyAlways
	if lived(always, now) {
		t.Error("lived of a pod whose container is still to be started again = true, want false")
	}
	probed := podOf("Running", false, status(runningSince(now.Add(-15*time.Second))))
	if !lived(probed, now) {
		t.Error("lived of a pod without probes that has run for 15 s = false, want true")
	}
	probed.Spec.Containers[0].LivenessProbe = &v1.Probe{}
	if lived(probed, now) {
		t.Error("lived of a pod with a liveness probe that has run for 15 s = true, want false")
	}
	waits := podOf("Pending", false, status(waitingFor("PodInitializing")))
	waits.Spec.InitContainers = []v1.Container{{Name: "init"}}
	waits.Status.InitContainerStatuses = []v1.ContainerStatus{restarted}
	if !lived(waits, now) {
		t.Error("lived of a pod whose init container fails again and again = false, want true")
	}
}

func TestSettled(t *testing.T) {
	ready := v1.ContainerStatus{Ready: true, State: runningSince(time.Now())}
	starts := v1.ContainerStatus{State: runningSince(time.Now())}
	refused := v1.ContainerStatus{State: waitingFor("CreateContainerConfigError")}
	creates := v1.ContainerStatus{State: waitingFor("ContainerCreating")}
	ended := v1.ContainerStatus{State: endedWith(1, "Error", time.Now())}
	for name, test := range map[string]struct {
		pod  *v1.Pod
		want bool
	}{
		"no status":                  {podOf(v1.PodPending, false), false},
		"starts":                     {podOf(v1.PodPending, false, creates), false},
		"ready":                      {podOf(v1.PodRunning, false, ready), true},
		"one is not ready":           {podOf(v1.PodRunning, false, ready, starts), false},
		"one is refused":             {podOf(v1.PodPending, false, ready, refused), true},
		"one is refused, one starts": {podOf(v1.PodPending, false, starts, refused), false},
		"one has ended for good":     {podOf(v1.PodRunning, false, ready, ended), true},
		"the pod has ended":          {podOf(v1.PodFailed, false, ended), true},
		"one waits for its next start": {
			podOf(v1.PodRunning, false, ready, v1.ContainerStatus{State: waitingFor("CrashLoopBackOff")}), true,
		},
	} {
		if got := settled(test.pod); got != test.want {
			t.Errorf("%s: settled = %v, want %v", name, got, test.want)
		}
	}
	again := podOf(v1.PodRunning, false, ended)
	again.Spec.RestartPolicy = v1.RestartPolicyAlways
	if settled(again) {
		t.Error("settled of a pod whose container is about to start again = true, want false")
	}
	init := podOf(v1.PodPending, false, v1.ContainerStatus{State: waitingFor("PodInitializing")})
	init.Status.InitContainerStatuses = []v1.ContainerStatus{refused}
	if !settled(init) {
		t.Error("settled of a pod whose init container is refused = false, want true")
	}
	sidecar := podOf(v1.PodPending, false, refused)
	sidecar.Spec.InitContainers = []v1.Container{{Name: "side", RestartPolicy: new(v1.ContainerRestartPolicyAlways)}}
	sidecar.Status.InitContainerStatuses = []v1.ContainerStatus{{Name: "side", State: runningSince(time.Now())}}
	if settled(sidecar) {
		t.Error("settled of a pod whose sidecar is not ready yet = true, want false")
	}
	sidecar.Status.InitContainerStatuses[0].Ready = true
	if !settled(sidecar) {
		t.Error("settled of a pod whose sidecar is ready = false, want true")
	}
}

// TestEnds: of some paths the first and the last value are compared.
func TestEnds(t *testing.T) {
	c := Case{Ends: []string{"message"}}
	l, r := c.kept(Trace{"message": {"a", "b", "c"}, "other": {"a", "b", "c"}},
		Trace{"message": {"a", "c"}, "other": {"a", "c"}})
	if got, want := Compare([]Trace{l}, []Trace{r}), "other"; len(got) != 1 || got[0].Path != want {
		t.Errorf("paths that differ = %v, want %s", got, want)
	}
	l, r = c.kept(Trace{"message": {"a", "b", "a"}}, Trace{"message": {"a"}})
	if got := Compare([]Trace{l}, []Trace{r}); len(got) != 0 {
		t.Errorf("paths that differ where the last value is the first one = %v, want none", got)
	}
}
