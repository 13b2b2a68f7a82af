package status

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// TestStopped: a pod that the node ends fails with the reason, and with the condition, when nothing of it runs, however
// its containers ended.
func TestStopped(t *testing.T) {
	why := &Stopped{
		Reason: "Preempting", Message: "Preempted in order to admit critical pod", Condition: &v1.PodCondition{
			Type:    v1.DisruptionTarget,
			Status:  v1.ConditionTrue,
			Reason:  v1.PodReasonTerminationByKubelet,
			Message: "why",
		},
	}
	p := pod(v1.RestartPolicyNever, 0, 1)
	runs := generate(p, box(runningC("c0")))
	ends := generate(p, box(runningC("c0")), func(in *Inputs) { in.Stopped, in.Previous = why, runs })
	if c := condition(ends, v1.DisruptionTarget); ends.Phase != v1.PodRunning || ends.Reason != "" || c.Type != "" ||
		condition(ends, v1.PodReady).Status != v1.ConditionTrue {
		t.Errorf("while it ends: %s %s, %+v; want Running and ready, without the condition DisruptionTarget",
			ends.Phase, ends.Reason, ends.Conditions)
	}
	hour := t0.Add(time.Hour)
	later := func(in *Inputs) { in.Stopped, in.Previous, in.Now, in.Terminated = why, ends, hour, true }
	for name, got := range map[string]v1.PodStatus{
		"it ended well":   generate(p, box(exitedC("c0", 0)), later),
		"it ended badly":  generate(p, box(exitedC("c0", 9)), later),
		"nothing is left": generate(p, &observed.Pod{UID: "1", Detailed: true}, later),
		"nothing ever lived": generate(p, nil, func(in *Inputs) {
			in.Stopped, in.Now, in.Terminated = why, hour, true
		}),
	} {
		c := condition(got, v1.DisruptionTarget)
		if got.Phase != v1.PodFailed || got.Reason != why.Reason || got.Message != why.Message ||
			c.Status != v1.ConditionTrue ||
			c.ObservedGeneration != 3 || !c.LastTransitionTime.Time.Equal(hour) {
			t.Errorf("%s: %s %s %s, %+v; want Failed, %s, %s and DisruptionTarget since %v",
				name, got.Phase, got.Reason, got.Message, got.Conditions, why.Reason, why.Message, hour)
		}
		again := generate(p, nil, func(in *Inputs) { in.Previous, in.Terminated = got, true })
		if again.Reason != why.Reason || condition(again, v1.DisruptionTarget) != c {
			t.Errorf("%s: later status = %+v, want reason %s and the same DisruptionTarget", name, again, why.Reason)
		}
	}
	// A status of an earlier version has the condition from the decision on.
	early := *ends.DeepCopy()
	early.Conditions = append(early.Conditions, *why.Condition)
	if c := condition(generate(p, box(runningC("c0")), func(in *Inputs) { in.Previous = early }),
		v1.DisruptionTarget); c.Message != "why" {
		t.Errorf("condition of an earlier version = %+v, want it kept", c)
	}
}

// TestStoppedForItsDeadline: such a pod takes no more requests while it ends, though its containers are ready.
func TestStoppedForItsDeadline(t *testing.T) {
	why := &Stopped{Reason: "DeadlineExceeded", Message: "late", Unready: true}
	p := pod(v1.RestartPolicyAlways, 0, 1)
	runs := generate(p, box(runningC("c0")))
	later := t0.Add(time.Hour)
	got := generate(p, box(runningC("c0")), func(in *Inputs) { in.Stopped, in.Previous, in.Now = why, runs, later })
	if got.Phase != v1.PodRunning || got.Reason != "" || !got.ContainerStatuses[0].Ready {
		t.Errorf("while it ends: %s %q, ready %t; want Running without a reason, true", got.Phase, got.Reason,
			got.ContainerStatuses[0].Ready)
	}
	for _, kind := range []v1.PodConditionType{v1.PodReady, v1.ContainersReady} {
		before, c := condition(runs, kind), condition(got, kind)
		if before.Status != v1.ConditionTrue || c.Status != v1.ConditionFalse || c.Reason != podFailed ||
			c.Message != "" ||
			!c.LastTransitionTime.Time.Equal(later) {
			t.Errorf("%s: %+v, then %+v; want True, then False for PodFailed since %v", kind, before, c, later)
		}
	}
}

func TestDeviceHealth(t *testing.T) {
	sick := []v1.ResourceStatus{
		{
			Name: "example.com/x", Resources: []v1.ResourceHealth{
				{ResourceID: "1", Health: v1.ResourceHealthStatusUnhealthy},
			},
		},
	}
	devices := func(in *Inputs) { in.Devices = map[string][]v1.ResourceStatus{"c1": sick} }
	for name, obs := range map[string]*observed.Pod{"runs": box(runningC("c0"), runningC("c1")), "not there": nil} {
		got := generate(pod(v1.RestartPolicyAlways, 0, 2), obs, devices)
		if got.ContainerStatuses[0].AllocatedResourcesStatus != nil {
			t.Errorf("%s: a container without devices has %v, want nil",
				name, got.ContainerStatuses[0].AllocatedResourcesStatus)
		}
		if diff := cmp.Diff(sick, got.ContainerStatuses[1].AllocatedResourcesStatus); diff != "" {
			t.Errorf("%s mismatch (-want +got):\n%s", name, diff)
		}
	}
}
