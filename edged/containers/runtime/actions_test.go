package runtime

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/restart"
)

func ruleFor(action v1.ContainerRestartRuleAction, codes ...int32) v1.ContainerRestartRule {
	return v1.ContainerRestartRule{
		Action: action, ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn,
			Values: codes},
	}
}

// TestRulesOfActions: what container-level policies and rules, probes and ephemeral containers ask for.
func TestRulesOfActions(t *testing.T) {
	always, onFailure, never := v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever
	with := func(p *v1.Pod, change func(*v1.Pod)) *v1.Pod { change(p); return p }
	own := func(policy v1.ContainerRestartPolicy, rules ...v1.ContainerRestartRule) func(*v1.Pod) {
		return func(p *v1.Pod) {
			c := &p.Spec.Containers[0]
			c.RestartPolicy, c.RestartPolicyRules = &policy, rules
		}
	}
	sidecar := func(p *v1.Pod) {
		p.Spec.InitContainers[0].RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
	}
	probed := func(p *v1.Pod) { sidecar(p); p.Spec.InitContainers[0].StartupProbe = &v1.Probe{} }
	debug := func(p *v1.Pod) {
		p.Spec.EphemeralContainers = []v1.EphemeralContainer{
			{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "e", Image: "img"}, TargetContainerName: "c0"},
		}
	}
	again, all := ruleFor(v1.ContainerRestartRuleActionRestart, 42),
		ruleFor(v1.ContainerRestartRuleActionRestartAllContainers, 88)
	started := observed.Probes{"i0-id": {Started: true}}
	failed := func(id string) observed.Probes {
		return observed.Probes{
			id: {Started: true, Failed: &observed.ProbeFailure{Message: "m", Grace: ptr.To[int64](3)}},
		}
	}
	for name, c := range map[string]struct {
		pod    *v1.Pod
		obs    string
		probes observed.Probes
		want   string
	}{
		"own Never in Always": {with(testPod(always, 0, 2), own("Never")), "c0 exited 1,c1 running", nil,
			""},
		"own Always in Never": {
			with(testPod(never, 0, 1), own("Always")), "c0 exited 0", nil, "start c0",
		},
		"own OnFailure in Always": {with(testPod(always, 0, 1), own("OnFailure")), "c0 exited 0", nil, ""},
		"a rule starts it": {with(testPod(never, 0, 1), own("Never", again)), "c0 exited 42", nil,
			"start c0"},
		"no rule starts it": {with(testPod(never, 0, 1), own("Never", again)), "c0 exited 41", nil, ""},
		"a rule starts all": {with(testPod(never, 0, 2), own("Never", all)), "c0 exited 88,c1 running",
			nil, "start over"},
		"a rule starts all, in no sandbox": {with(testPod(never, 0, 1), own("Never", all)), "dead,c0 exited 88", nil,
			"start over"},
		"liveness failed": {
			testPod(always, 0, 1), "c0 running", failed("c0-id"), "kill c0 3, start c0",
		},
		"liveness failed, OnFailure": {
			testPod(onFailure, 0, 1), "c0 running", failed("c0-id"), "kill c0 3, start c0",
		},
		"liveness failed, Never": {testPod(never, 0, 1), "c0 running", failed("c0-id"), "kill c0 3"},
		"sidecar's startup probe runs": {
			with(testPod(always, 2, 1), probed), "i0 running", observed.Probes{"i0-id": {}}, "",
		},
		"sidecar's startup probe succeeded": {with(testPod(always, 2, 1), probed), "i0 running", started, "start i1"},
		"sidecar's startup probe failed": {with(testPod(never, 2, 1), probed), "i0 running", failed("i0-id"),
			"kill i0 3, start i0"},
		"probed sidecar is alone at first": {with(testPod(always, 1, 1), probed), "", nil, "start i0"},
		"sidecar and main":                 {with(testPod(always, 1, 1), sidecar), "", nil, "start i0, start c0"},
		"sidecar fails beside a main": {
			with(testPod(never, 1, 1), sidecar), "i0 running,c0 running", failed("i0-id"), "kill i0 3, start i0",
		},
		"ephemeral appears":             {with(testPod(always, 0, 1), debug), "c0 running", nil, "start e"},
		"ephemeral in the time of init": {with(testPod(always, 1, 1), debug), "i0 running", nil, "start e"},
		"ephemeral was never started": {
			with(testPod(always, 0, 1), debug), "c0 running,e created", nil, "start e",
		},
		"ephemeral has ended":       {with(testPod(always, 0, 1), debug), "c0 running,e exited 1", nil, ""},
		"ephemeral in a failed pod": {with(testPod(never, 1, 1), debug), "i0 exited 1,e running", nil, ""},
	} {
		obs := &observed.Pod{Sandboxes: seen().Sandboxes}
		if text, dead := strings.CutPrefix(c.obs, "dead,"); text != "" {
			obs = seen(strings.Split(text, ",")...)
			obs.Sandboxes[0].Ready = !dead
		}
		a := computeActions(c.pod, obs, c.probes)
		got := describe(a)
		if a.StartOver {
			got = "start over"
		}
		for _, k := range a.Kill {
			if k.Grace != nil {
				got = strings.Replace(got, "kill "+k.Name, fmt.Sprintf("kill %s %d", k.Name, *k.Grace), 1)
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// simulation is a pod on a model of a runtime.
type simulation struct {
	*rand.Rand
	t     *testing.T
	pod   *v1.Pod
	obs   *observed.Pod
	began map[string]bool // the init containers that ended well, or began if they are sidecars, in this sandbox
	next  int
	log   []string
}

// long has TestActionsOverLives, TestActionsConverge and TestChaos go through ten times as many pods.
var long = flag.Bool("long", false, "go through all random pods, not only the first ones")

// randomPods is how many random pods a test goes through.
func randomPods() int {
	if *long {
		return 3000
	}
	return 300
}

// TestActionsOverLives: random pods whose containers end, whose probes fail, whose sandboxes die. No container starts
// before the init containers have done their work; nothing that works is stopped; a failed probe is the only reason to
// stop a sidecar; and when the trouble has ended, the pod comes to rest.
func TestActionsOverLives(t *testing.T) {
	for seed := range uint64(randomPods()) {
		l := &simulation{
			Rand:  rand.New(rand.NewPCG(seed, 9)),
			t:     t,
			obs:   &observed.Pod{UID: "1"},
			began: map[string]bool{},
		}
		l.pod = l.randomPod()
		for range 30 {
			l.trouble()
			l.step(l.IntN(6) == 0)
		}
		for rest := 0; ; rest++ {
			if rest > 60 {
				t.Fatalf("seed %d: %d steps and still actions, want none after at most 60: %q", seed, rest, l.log)
			}
			if !l.step(false) && !l.finishInit() {
				break
			}
		}
		l.atRest(seed)
	}
}

func (l *simulation) randomPod() *v1.Pod {
	p := testPod([]v1.RestartPolicy{
		v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever,
	}[l.IntN(3)], l.IntN(4), 1+l.IntN(3))
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			c := &list[i]
			if l.IntN(3) == 0 {
				c.RestartPolicy = ptr.To([]v1.ContainerRestartPolicy{"Never", "OnFailure", "Always"}[l.IntN(3)])
			}
			if l.IntN(4) == 0 {
				c.RestartPolicyRules = []v1.ContainerRestartRule{ruleFor(v1.ContainerRestartRuleActionRestart, 3),
					ruleFor(v1.ContainerRestartRuleActionRestartAllContainers, 4)}
			}
			if restart.IsSidecar(c) && l.IntN(2) == 0 {
				c.StartupProbe = &v1.Probe{}
			}
		}
	}
	return p
}

// trouble ends a container, or the sandbox.
func (l *simulation) trouble() {
	if len(l.obs.Containers) > 0 && l.IntN(2) == 0 {
		if c := l.obs.Containers[l.IntN(len(l.obs.Containers))]; c.Running() {
			l.exit(c, []int32{0, 0, 1, 3, 4}[l.IntN(5)])
		}
	}
	if len(l.obs.Sandboxes) > 0 && l.IntN(15) == 0 {
		l.obs.Sandboxes[0].Ready = false
		l.log = append(l.log, "sandbox dies")
	}
}

func (l *simulation) exit(c *observed.Container, code int32) {
	c.State, c.ExitCode = isExited, code
	if code == 0 {
		l.began[c.Name] = true
	}
	l.log = append(l.log, fmt.Sprintf("%s ends with %d", c.Name, code))
}

// finishInit ends an init container well that runs and is no sidecar.
func (l *simulation) finishInit() bool {
	for i := range l.pod.Spec.InitContainers {
		c := &l.pod.Spec.InitContainers[i]
		if last := l.obs.Container(c.Name); !restart.IsSidecar(c) && last.Running() {
			l.exit(last, 0)
			return true
		}
	}
	return false
}

// step asks for the next actions and does them, if the pod is not done; it reports whether there were any.
func (l *simulation) step(probesFail bool) bool {
	probes := observed.Probes{}
	for _, c := range l.obs.Containers {
		if c.Running() {
			probes[c.ID] = observed.Probed{Started: true}
			if probesFail && l.IntN(3) == 0 {
				probes[c.ID] = observed.Probed{Failed: &observed.ProbeFailure{}}
			}
		}
	}
	a := computeActions(l.pod, l.obs, probes)
	if a.None() {
		return false
	}
	l.log = append(l.log, "-> "+describe(a))
	if a.StartOver {
		l.obs.Containers, l.began = nil, map[string]bool{}
		return true
	}
	for _, k := range a.Kill {
		c := find(l.obs, k.ID)
		if probes[k.ID].Failed == nil && c.SandboxID == a.SandboxID && l.obs.Sandboxes[0].Ready {
			l.t.Fatalf("kill of %s, whose probes %+v have not failed, in a ready sandbox, want none: %q",
				k.Name, probes[k.ID], l.log)
		}
		c.State, c.ExitCode = isExited, 137
	}
	if a.KillPod {
		for _, c := range l.obs.Containers {
			if c.Running() {
				c.State, c.ExitCode = isExited, 137
			}
		}
	}
	id := a.SandboxID
	if a.CreateSandbox {
		id, l.began = fmt.Sprintf("s%d", a.Attempt), map[string]bool{}
		l.obs.Sandboxes = []*observed.Sandbox{{ID: id, Attempt: a.Attempt, Ready: true, IPs: []string{"10.0.0.3"}}}
	}
	for _, s := range a.Start {
		l.start(s, id)
	}
	return true
}

func (l *simulation) start(s Start, sandbox string) {
	name := s.Container.Name
	if !s.Init && !slices.ContainsFunc(l.pod.Spec.Containers, func(c v1.Container) bool {
		return createdIn(l.obs, sandbox, c.Name)
	}) {
		for i := range l.pod.Spec.InitContainers {
			if c := &l.pod.Spec.InitContainers[i]; !l.began[c.Name] {
				l.t.Fatalf("start of %s while init container %s is not done, want it later: %q", name, c.Name, l.log)
			}
		}
	}
	if l.obs.Container(name).Running() {
		l.t.Fatalf("start of %s, which runs, want none: %q", name, l.log)
	}
	if s.Init && restart.IsSidecar(s.Container) {
		l.began[name] = true
	}
	l.next++
	c := &observed.Container{
		ID:        fmt.Sprint(name, "-", l.next),
		Name:      name,
		SandboxID: sandbox,
		State:     isRunning,
		Hash:      Hash(s.Container),
	}
	l.obs.Containers = append([]*observed.Container{c}, l.obs.Containers...)
}

// atRest checks that what is to run does, unless the pod has ended.
func (l *simulation) atRest(seed uint64) {
	if initFailedForGood(l.pod, l.obs) {
		return
	}
	for i := range l.pod.Spec.Containers {
		c := &l.pod.Spec.Containers[i]
		if last := l.obs.Container(c.Name); !last.Running() && restarts(l.pod, c, last) {
			l.t.Fatalf("seed %d: %s in the end = %+v, want it running: %q", seed, c.Name, last, l.log)
		}
	}
}
