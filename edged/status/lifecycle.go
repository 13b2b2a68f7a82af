package status

import (
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/observed"
	"github.com/edgecore-io/edgecore/edged/restart"
)

// What the condition AllContainersRestarting says while all containers of a pod are stopped and removed.
const (
	restartStarted        = "RestartAllContainersStarted"
	restartStartedMessage = "container exited with restart policy rule"
)

// ephemeralStatuses makes the statuses of the ephemeral containers, which are neither ready nor unready, and have no
// say in the pod's phase.
func ephemeralStatuses(in Inputs) []v1.ContainerStatus {
	var list []v1.Container
	for _, e := range in.Pod.Spec.EphemeralContainers {
		list = append(list, v1.Container(e.EphemeralContainerCommon))
	}
	return containerStatuses(in, list, in.Previous.EphemeralContainerStatuses, false)
}

// stopSignal is the signal by which a container is stopped: the runtime's word, or what the agent sends in its stead.
func stopSignal(c *v1.Container, o *observed.Container) *v1.Signal {
	if o.StopSignal != "" {
		s := v1.Signal(o.StopSignal)
		return &s
	}
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
		s := *c.Lifecycle.StopSignal
		return &s
	}
	return nil
}

// restartingCondition says whether all containers are being restarted; nil for a pod that has no rule for it.
func restartingCondition(in Inputs, phase v1.PodPhase) *v1.PodCondition {
	ruled, restarting := false, false
	for _, list := range [][]v1.Container{in.Pod.Spec.InitContainers, in.Pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			for _, r := range c.RestartPolicyRules {
				ruled = ruled || r.Action == v1.ContainerRestartRuleActionRestartAllContainers
			}
			last := in.Observed.Container(c.Name)
			restarting = restarting || last.Exited() && restart.After(in.Pod, c, last.ExitCode) == restart.All
		}
	}
	if !ruled {
		return nil
	}
	out := &v1.PodCondition{Type: v1.AllContainersRestarting, Status: v1.ConditionFalse}
	switch {
	case phase == v1.PodSucceeded:
		out.Reason = podCompleted
	case phase == v1.PodFailed:
		out.Reason = podFailed
	case restarting && !in.Terminated:
		out.Status, out.Reason, out.Message = v1.ConditionTrue, restartStarted, restartStartedMessage
	}
	return out
}
