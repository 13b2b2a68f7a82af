package runtime

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/restart"
)

// exitWithSandbox is how a container ends whose sandbox is taken away from under it.
const exitWithSandbox = 137

// sandboxChange reports whether the pod needs a new sandbox, and with which attempt number.
func sandboxChange(pod *v1.Pod, obs *observed.Pod) (bool, uint32) {
	newest := obs.Sandbox()
	if newest == nil {
		return true, 0
	}
	if !obs.SandboxUsable(pod.Spec.HostNetwork) {
		return true, newest.Attempt + 1
	}
	return false, 0
}

// replaceSandbox starts the pod over in a new sandbox, unless nothing in it is to run again.
func replaceSandbox(pod *v1.Pod, obs *observed.Pod, attempt uint32) Actions {
	a := Actions{KillPod: obs.Alive()}
	var start []Start
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		last := obs.Container(c.Name)
		// What still runs dies with the old sandbox, and ends for good where it never restarts.
		if last.Running() && restart.After(pod, c, exitWithSandbox) == restart.Stay {
			continue
		}
		if restarts(pod, c, last) {
			start = append(start, Start{Container: c, Last: last})
		}
	}
	if len(start) == 0 || initFailedForGood(pod, obs) {
		return a
	}
	a.CreateSandbox, a.Attempt = true, attempt
	if initActions(pod, obs, nil, &a) == initDone {
		a.Start = append(a.Start, start...)
	}
	return a
}

// initFailedForGood reports whether an init container has failed that is not to run again.
func initFailedForGood(pod *v1.Pod, obs *observed.Pod) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c v1.Container) bool {
		last := obs.Container(c.Name)
		return last.Exited() && last.ExitCode != 0 && restart.After(pod, &c, last.ExitCode) == restart.Stay
	})
}
