package status

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// restartsAll is a rule that starts the pod over after exit code 88, again one that starts the container after 42.
var (
	startsOver = v1.ContainerRestartRule{
		Action: v1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &v1.ContainerRestartRuleOnExitCodes{
			Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{88},
		},
	}
	again = v1.ContainerRestartRule{
		Action: v1.ContainerRestartRuleActionRestart, ExitCodes: &v1.ContainerRestartRuleOnExitCodes{
			Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42},
		},
	}
)

func withPolicy(
	p *v1.Pod, c *v1.Container, policy v1.ContainerRestartPolicy, rules ...v1.ContainerRestartRule,
) *v1.Pod {
	c.RestartPolicy, c.RestartPolicyRules = ptr.To(policy), rules
	return p
}

// TestPhasesOfRestartRules: a container that is started again holds a pod, one that is not does not, and sidecars
// have no say.
func TestPhasesOfRestartRules(t *testing.T) {
	never, always := v1.RestartPolicyNever, v1.RestartPolicyAlways
	main := func(policy v1.RestartPolicy, own v1.ContainerRestartPolicy, rules ...v1.ContainerRestartRule) *v1.Pod {
		p := pod(policy, 0, 1)
		return withPolicy(p, &p.Spec.Containers[0], own, rules...)
	}
	init := func(policy v1.RestartPolicy, own v1.ContainerRestartPolicy, rules ...v1.ContainerRestartRule) *v1.Pod {
		p := pod(policy, 1, 1)
		return withPolicy(p, &p.Spec.InitContainers[0], own, rules...)
	}
	for name, c := range map[string]struct {
		pod  *v1.Pod
		obs  *observed.Pod
		want v1.PodPhase // of the containers
	}{
		"own Never in Always":          {main(always, "Never"), box(exitedC("c0", 1)), v1.PodFailed},
		"own Never in Always, well":    {main(always, "Never"), box(exitedC("c0", 0)), v1.PodSucceeded},
		"own Always in Never":          {main(never, "Always"), box(exitedC("c0", 0)), v1.PodRunning},
		"rule has it started again":    {main(never, "Never", again), box(exitedC("c0", 42)), v1.PodRunning},
		"rule for another code":        {main(never, "Never", again), box(exitedC("c0", 41)), v1.PodFailed},
		"pod starts over":              {main(never, "Never", startsOver), box(exitedC("c0", 88)), v1.PodRunning},
		"init, own Never in Always":    {init(always, "Never"), box(exitedC("i0", 1)), v1.PodFailed},
		"init, own OnFailure in Never": {init(never, "OnFailure"), box(exitedC("i0", 1)), v1.PodPending},
		"init ended well, and runs again": {
			init(never, "Never", v1.ContainerRestartRule{
				Action: again.Action, ExitCodes: &v1.ContainerRestartRuleOnExitCodes{
					Operator: "In", Values: []int32{0},
				},
			}), box(exitedC("i0", 0)), v1.PodPending,
		},
		"sidecar runs, main ended well": {
			init(never, "Always"), box(runningC("i0"), exitedC("c0", 0)), v1.PodRunning,
		},
		"sidecar failed, main ended well": {
			init(never, "Always"), box(exitedC("i0", 1), exitedC("c0", 0)), v1.PodSucceeded,
		},
		"sidecar ended well, main failed": {
			init(never, "Always"), box(exitedC("i0", 0), exitedC("c0", 1)), v1.PodFailed,
		},
		"sidecar failed, main runs": {
			init(never, "Always"), box(exitedC("i0", 1), runningC("c0")), v1.PodRunning,
		},
		"sidecar runs, main not there yet": {init(never, "Always"), box(runningC("i0")), v1.PodPending},
	} {
		if got := containersPhase(c.pod, c.obs); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func containersPhase(p *v1.Pod, obs *observed.Pod) v1.PodPhase {
	in, out := Inputs{Pod: p, Observed: obs}, v1.PodStatus{}
	setContainers(in, &out)
	setReadiness(in, &out)
	return phaseOf(in, &out)
}

// TestRestartAllContainers follows the statuses of a pod whose containers are all restarted.
func TestRestartAllContainers(t *testing.T) {
	p := pod(v1.RestartPolicyNever, 1, 2)
	withPolicy(p, &p.Spec.Containers[0], "Never", startsOver)
	var last v1.PodStatus
	first, second := runningC("i0"), runningC("c0")
	first.ID, second.ID = "i0-2", "c0-2"
	const gone = "waiting RestartingAllContainers, terminated RestartingAllContainers 137, 1"
	for _, step := range []struct {
		name  string
		obs   *observed.Pod
		want  string
		phase v1.PodPhase
		cond  v1.ConditionStatus
	}{
		{"runs", box(exitedC("i0", 0), runningC("c0"), runningC("c1")),
			"terminated Completed 0, -, 0; running, -, 0; running, -, 0", v1.PodRunning, v1.ConditionFalse},
		{"is to restart", box(exitedC("i0", 0), exitedC("c0", 88), runningC("c1")),
			"terminated Completed 0, -, 0; terminated Error 88, -, 0; running, -, 0", v1.PodRunning, v1.ConditionTrue},
		{"some are removed", box(exitedC("c0", 88)), gone + "; terminated Error 88, -, 0; " + gone, v1.PodRunning,
			v1.ConditionTrue},
		{"all are removed", box(), gone + "; " + gone + "; " + gone, v1.PodRunning, v1.ConditionFalse},
		{"nothing has happened since", box(), gone + "; " + gone + "; " + gone, v1.PodRunning, v1.ConditionFalse},
		{
			"init runs", box(first), "running, terminated RestartingAllContainers 137, 1; " +
				"waiting PodInitializing, terminated RestartingAllContainers 137, 1; waiting PodInitializing, " +
				"terminated RestartingAllContainers 137, 1",
			v1.PodPending, v1.ConditionFalse,
		},
		{
			"c0 runs", box(first, second), "running, terminated RestartingAllContainers 137, 1; running, terminated " +
				"RestartingAllContainers 137, 1; " +
				"waiting PodInitializing, terminated RestartingAllContainers 137, 1", v1.PodPending, v1.ConditionFalse,
		},
	} {
		last = generate(p, step.obs, func(in *Inputs) { in.Previous = last })
		var got []string
		for _, s := range slices.Concat(last.InitContainerStatuses, last.ContainerStatuses) {
			got = append(got, fmt.Sprintf("%s, %s, %d", stateText(s.State), stateText(s.LastTerminationState),
				s.RestartCount))
		}
		if id := last.InitContainerStatuses[0].ContainerID; step.phase == v1.PodRunning && id == "" {
			t.Errorf("%s: the init container has no ID, want that of its last attempt", step.name)
		}
		cond := condition(last, v1.AllContainersRestarting)
		if text := strings.Join(got, "; "); text != step.want || last.Phase != step.phase || cond.Status != step.cond ||
			cond.ObservedGeneration != 0 {
			t.Errorf("%s: %s, %s\n%+v; want %s, %s\n%s and no generation", step.name, last.Phase, text, cond,
				step.phase, step.want, step.cond)
		}
		if c := condition(last, v1.PodInitialized); c.Status != v1.ConditionTrue {
			t.Errorf("%s: Initialized is %+v, want True", step.name, c)
		}
	}
}

func TestRestartingCondition(t *testing.T) {
	plain := pod(v1.RestartPolicyNever, 0, 1)
	if c := condition(generate(plain, box(exitedC("c0", 88))), v1.AllContainersRestarting); c.Type != "" {
		t.Errorf("a pod without such a rule has %+v, want \"\"", c)
	}
	p := pod(v1.RestartPolicyNever, 0, 2)
	withPolicy(p, &p.Spec.Containers[0], "Never", startsOver)
	for name, c := range map[string]struct {
		obs    *observed.Pod
		status v1.ConditionStatus
		reason string
	}{
		"runs":     {box(runningC("c0"), runningC("c1")), v1.ConditionFalse, ""},
		"restarts": {box(exitedC("c0", 88), runningC("c1")), v1.ConditionTrue, restartStarted},
		"removed":  {box(), v1.ConditionFalse, ""},
		"done":     {box(exitedC("c0", 0), exitedC("c1", 0)), v1.ConditionFalse, podCompleted},
		"failed":   {box(exitedC("c0", 1), exitedC("c1", 0)), v1.ConditionFalse, podFailed},
	} {
		if got := condition(generate(p, c.obs), v1.AllContainersRestarting); got.Status != c.status ||
			got.Reason != c.reason {
			t.Errorf("%s: %+v, want %v, %v", name, got, c.status, c.reason)
		}
	}
}

// TestEphemeral: ephemeral containers are told of, and neither hold nor end a pod.
func TestEphemeral(t *testing.T) {
	p := pod(v1.RestartPolicyNever, 0, 1)
	p.Spec.EphemeralContainers = []v1.EphemeralContainer{
		{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug", Image: "img"}},
	}
	for name, c := range map[string]struct {
		obs   *observed.Pod
		phase v1.PodPhase
		check func(v1.ContainerState) bool
	}{
		"not there yet": {box(runningC("c0")), v1.PodRunning, func(s v1.ContainerState) bool {
			return s.Waiting != nil
		}},
		"runs": {box(runningC("c0"), runningC("debug")), v1.PodRunning, func(s v1.ContainerState) bool {
			return s.Running != nil
		}},
		"runs on after the main": {
			box(exitedC("c0", 0), runningC("debug")), v1.PodPending, func(s v1.ContainerState) bool {
				return s.Running != nil
			},
		},
		"failed": {box(runningC("c0"), exitedC("debug", 1)), v1.PodRunning, func(s v1.ContainerState) bool {
			return s.Terminated != nil
		}},
	} {
		got := generate(p, c.obs)
		if len(got.EphemeralContainerStatuses) != 1 || got.Phase != c.phase {
			t.Errorf("%s: %s, %+v; want one, %v", name, got.Phase, got.EphemeralContainerStatuses, c.phase)
			continue
		}
		if s := got.EphemeralContainerStatuses[0]; !c.check(s.State) || s.Ready || s.Started != nil {
			t.Errorf("%s: %+v, want it neither ready nor started", name, s)
		}
	}
}

func TestStopSignal(t *testing.T) {
	p := pod(v1.RestartPolicyNever, 0, 1)
	obs := box(runningC("c0"))
	if s := generate(p, obs).ContainerStatuses[0].StopSignal; s != nil {
		t.Errorf("nobody said anything, and it is %s; want nil", *s)
	}
	p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{StopSignal: ptr.To(v1.SIGUSR1)}
	if s := generate(p, obs).ContainerStatuses[0].StopSignal; ptr.Deref(s, "nil") != v1.SIGUSR1 {
		t.Errorf("stop signal = %s, want %s as in the spec", ptr.Deref(s, "nil"), v1.SIGUSR1)
	}
	obs.Containers[0].StopSignal = "SIGUSR2"
	if s := generate(p, obs).ContainerStatuses[0].StopSignal; ptr.Deref(s, "nil") != v1.SIGUSR2 {
		t.Errorf("stop signal = %s, want %s as the runtime reports it", ptr.Deref(s, "nil"), v1.SIGUSR2)
	}
}

// TestPostStartFailed: a container whose hook failed waits for its next attempt, in a pod that has been running.
func TestPostStartFailed(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, 0, 1)
	got := generate(p, box(exitedC("c0", 143)), func(in *Inputs) {
		in.Reasons = map[string]observed.Reason{"c0": {Reason: "PostStartHookError", Message: "m"}}
	})
	if s := got.ContainerStatuses[0]; got.Phase != v1.PodRunning || s.State.Waiting == nil ||
		s.State.Waiting.Reason != "PostStartHookError" || s.LastTerminationState.Terminated == nil || s.Ready {
		t.Errorf("%s: %+v, want Running, waiting with PostStartHookError, not ready", got.Phase, s)
	}
}
