package status

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/restart"
)

// What the condition AllContainersRestarting says while all containers of a pod are stopped and removed.
const (
	restartStarted        = "RestartAllContainersStarted"
	restartStartedMessage = "container exited with restart policy rule"
)

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

// containers are the init containers and the containers of a pod.
func containers(pod *v1.Pod) []v1.Container {
	return slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
}

// triggered reports whether a container has ended whose rules have all containers restarted.
func (in *Inputs) triggered() bool {
	return slices.ContainsFunc(containers(in.Pod), func(c v1.Container) bool {
		last := in.Observed.Container(c.Name)
		return last.Exited() && restart.After(in.Pod, &c, last.ExitCode) == restart.All
	})
}

// restarting reports whether all containers are being restarted: those that the runtime no longer has were removed
// for it.
func (in *Inputs) restarting() bool {
	return in.triggered() || slices.ContainsFunc(in.Previous.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.AllContainersRestarting && c.Status == v1.ConditionTrue
	})
}

// removed reports whether the runtime has none of the pod's containers.
func (in *Inputs) removed() bool {
	return !slices.ContainsFunc(containers(in.Pod), func(c v1.Container) bool {
		return in.Observed.Container(c.Name) != nil
	})
}

// restartingCondition says whether all containers are being restarted; nil for a pod that has no rule for it. It has
// no generation, as under the kubelet.
func restartingCondition(in Inputs, phase v1.PodPhase) *v1.PodCondition {
	ruled := slices.ContainsFunc(containers(in.Pod), func(c v1.Container) bool {
		return slices.ContainsFunc(c.RestartPolicyRules, func(r v1.ContainerRestartRule) bool {
			return r.Action == v1.ContainerRestartRuleActionRestartAllContainers
		})
	})
	if !ruled {
		return nil
	}
	out := &v1.PodCondition{Type: v1.AllContainersRestarting, Status: v1.ConditionFalse}
	switch {
	case phase == v1.PodSucceeded:
		out.Reason = podCompleted
	case phase == v1.PodFailed:
		out.Reason = podFailed
	case in.triggered():
		out.Status, out.Reason, out.Message = v1.ConditionTrue, restartStarted, restartStartedMessage
	}
	return out
}
