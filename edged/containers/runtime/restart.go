package runtime

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/restart"
)

// restartsAllContainers reports whether a container ended in a way for which its rules start the whole pod over.
func restartsAllContainers(pod *v1.Pod, obs *observed.Pod) bool {
	return trigger(pod, obs) != nil
}

// trigger is the container whose end starts the pod over, or nil. It is removed after all others, so that the
// decision survives the agent.
func trigger(pod *v1.Pod, obs *observed.Pod) *observed.Container {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if last := obs.Container(list[i].Name); last.Exited() &&
				restart.After(pod, &list[i], last.ExitCode) == restart.All {
				return last
			}
		}
	}
	return nil
}

// containerAction decides on the container of s in a usable sandbox.
func containerAction(pod *v1.Pod, obs *observed.Pod, probes observed.Probes, s Start, a *Actions) {
	c := s.Container
	last := obs.Container(c.Name)
	if !last.Running() {
		if restarts(pod, c, last) {
			addStart(s, last, obs, a)
		}
		return
	}
	failed := probes.Of(last).Failed
	switch {
	case last.Hash != Hash(c):
		a.kill(last, ofSidecar(c, fmt.Sprintf("Container %s definition changed, will be restarted", c.Name)), nil)
	case last.SandboxID != a.SandboxID:
		a.kill(last, fmt.Sprintf("Container %s is in a sandbox that is no longer used, will be restarted", c.Name), nil)
	case failed != nil:
		a.kill(last, ofSidecar(c, failed.Message), failed.Grace)
		if restart.Policy(pod, c) == v1.ContainerRestartPolicyNever {
			return // its end is judged by its rules then
		}
	default:
		return
	}
	s.Last = last
	a.Start = append(a.Start, s)
}

// ofSidecar turns what is said of a container that is restarted into the kubelet's words for a sidecar.
func ofSidecar(c *v1.Container, message string) string {
	if !restart.IsSidecar(c) {
		return message
	}
	message, _ = strings.CutSuffix(message, ", will be restarted")
	return "Init c" + strings.TrimPrefix(message, "C")
}

// addStart starts a container, and first stops an earlier one whose state is unknown.
func addStart(s Start, last *observed.Container, obs *observed.Pod, a *Actions) {
	c := s.Container
	if last != nil && last.State == runtimeapi.ContainerState_CONTAINER_UNKNOWN {
		a.kill(last, fmt.Sprintf("Container %s is in an unknown state, try killing it before restart", c.Name), nil)
	}
	if last == nil {
		last = obs.Container(c.Name) // of an earlier sandbox: its attempt number and backoff count on
	}
	s.Last = last
	a.Start = append(a.Start, s)
}

func (a *Actions) kill(c *observed.Container, message string, grace *int64) {
	a.Kill = append(a.Kill, Kill{ID: c.ID, Name: c.Name, Message: message, Grace: grace})
}

// restarts reports whether a container that does not run is to be started under its policy and rules.
func restarts(pod *v1.Pod, c *v1.Container, last *observed.Container) bool {
	return last == nil || !last.Exited() || restart.After(pod, c, last.ExitCode) != restart.Stay
}
