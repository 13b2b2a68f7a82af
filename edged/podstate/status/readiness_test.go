package status

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// TestProbes: what probes say of running containers shows in their statuses and in the pod's conditions.
func TestProbes(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, 1, 2)
	p.Spec.InitContainers[0].RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
	obs := box(runningC("i0"), runningC("c0"), exitedC("c1", 1))
	for name, c := range map[string]struct {
		probes observed.Probes
		want   string // started and ready of i0, c0 and c1
		ready  string
	}{
		"none": {nil, "sr sr --", "containers with unready status: [c1]"},
		"not ready": {
			observed.Probes{"c0-id": {Started: true}}, "sr s- --", "containers with unready status: [c0 c1]",
		},
		"not started": {
			observed.Probes{"i0-id": {}, "c0-id": {Ready: true}}, "-- -- --",
			"containers with unready status: [i0 c0 c1]",
		},
		"of what has died": {
			observed.Probes{"c1-id": {Started: true, Ready: true}}, "sr sr --", "containers with unready status: [c1]",
		},
	} {
		s := generate(p, obs, func(in *Inputs) { in.Probes = c.probes })
		got := ""
		for _, c := range append(s.InitContainerStatuses, s.ContainerStatuses...) {
			got += map[bool]string{true: "s", false: "-"}[*c.Started] +
				map[bool]string{true: "r ", false: "- "}[c.Ready]
		}
		if got != c.want+" " {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if ready := condition(s, v1.ContainersReady); ready.Message != c.ready {
			t.Errorf("%s: %q, want %q", name, ready.Message, c.ready)
		}
	}
}

func TestReadinessGates(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, 0, 1)
	p.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "example.com/a"}, {ConditionType: "example.com/b"}}
	set := func(a, b v1.ConditionStatus) {
		p.Status.Conditions = nil
		for kind, status := range map[v1.PodConditionType]v1.ConditionStatus{"example.com/a": a, "example.com/b": b} {
			if status != "" {
				p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{Type: kind, Status: status})
			}
		}
	}
	const missing, shut = `corresponding condition of pod readiness gate "example.com/a" does not exist.`, `the status of pod readiness gate "example.com/b" is not "True", but False`
	for name, c := range map[string]struct {
		a, b, want v1.ConditionStatus
		message    string
	}{
		"missing": {"", v1.ConditionTrue, v1.ConditionFalse, missing},
		"shut":    {v1.ConditionTrue, v1.ConditionFalse, v1.ConditionFalse, shut},
		"both":    {"", v1.ConditionFalse, v1.ConditionFalse, missing + ", " + shut},
		"open":    {v1.ConditionTrue, v1.ConditionTrue, v1.ConditionTrue, ""},
	} {
		set(c.a, c.b)
		s := generate(p, box(runningC("c0")))
		if ready := condition(s, v1.PodReady); ready.Status != c.want || ready.Message != c.message ||
			(c.message != "") != (ready.Reason == "ReadinessGatesNotReady") {
			t.Errorf("%s: %+v, want %s, %q", name, ready, c.want, c.message)
		}
		if got := condition(s, v1.ContainersReady).Status; got != v1.ConditionTrue {
			t.Errorf("%s: ContainersReady = %s, want %s", name, got, v1.ConditionTrue)
		}
	}
	// Containers that are not ready come first.
	set("", "")
	if ready := condition(generate(p, box(exitedC("c0", 1))), v1.PodReady); ready.Reason != "ContainersNotReady" {
		t.Errorf("condition Ready is %+v, want ContainersNotReady", ready)
	}
}

// TestConditionsOfOthers: they are not told, since what is known of them may be old, and are shown.
func TestConditionsOfOthers(t *testing.T) {
	p := pod(v1.RestartPolicyAlways, 0, 1)
	p.Status.Conditions = []v1.PodCondition{
		{Type: "example.com/a", Status: v1.ConditionTrue}, {Type: v1.PodReady, Status: v1.ConditionUnknown},
		{Type: v1.PodResizePending, Status: v1.ConditionTrue}, {Type: v1.DisruptionTarget, Status: v1.ConditionTrue,
			Reason: "EvictionByEvictionAPI"},
	}
	s := generate(p, box(runningC("c0")), func(in *Inputs) {
		in.Previous.Conditions = append(p.Status.Conditions[:1:1],
			v1.PodCondition{Type: v1.DisruptionTarget, Reason: "EvictionByEvictionAPI"})
	})
	own := []v1.PodConditionType{v1.PodReadyToStartContainers, v1.PodInitialized, v1.PodReady, v1.ContainersReady,
		v1.PodScheduled}
	if diff := cmp.Diff(own, kindsOf(s)); diff != "" {
		t.Errorf("conditions mismatch (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(append(own, "example.com/a", v1.DisruptionTarget), kindsOf(WithOthers(s, p))); diff != "" {
		t.Errorf("conditions with those of others mismatch (-want +got):\n%s", diff)
	}
	if len(s.Conditions) != len(own) {
		t.Errorf("WithOthers changed its argument to %v, want %d conditions", s.Conditions, len(own))
	}
	// What this agent has said of a disruption stays.
	s = generate(p, box(runningC("c0")), func(in *Inputs) {
		in.Previous.Conditions = []v1.PodCondition{
			{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet},
		}
	})
	if condition(s, v1.DisruptionTarget).Status != v1.ConditionTrue {
		t.Errorf("conditions %+v, want DisruptionTarget kept", s.Conditions)
	}
}

func kindsOf(s v1.PodStatus) []v1.PodConditionType {
	var out []v1.PodConditionType
	for _, c := range s.Conditions {
		out = append(out, c.Type)
	}
	return out
}
