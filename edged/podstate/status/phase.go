package status

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/restart"
)

// phaseOf is the phase of the containers, by these rules; the first that applies decides:
//
//   - Failed, once an init container has failed that is not started again.
//   - Pending, while an init container has not done its work, a sidecar has not started (unless the containers run
//     already), or a container has never run.
//   - Running, while a container or a sidecar runs, or a container is to be started again.
//   - Succeeded or Failed, when all containers have ended for good. Sidecars and ephemeral containers have no say in
//     which of them.
func phaseOf(in Inputs, out *v1.PodStatus) v1.PodPhase {
	var c counts
	for i := range in.Pod.Spec.InitContainers {
		c.init(in, &in.Pod.Spec.InitContainers[i], &out.InitContainerStatuses[i])
	}
	for i := range in.Pod.Spec.Containers {
		spec := &in.Pod.Spec.Containers[i]
		c.container(in, spec, find(out.ContainerStatuses, spec.Name))
	}
	switch {
	case c.initFailed:
		return v1.PodFailed
	case c.initPending, c.sidecarPending && !containersCreated(in), c.waiting > 0:
		return v1.PodPending
	case c.running > 0:
		return v1.PodRunning
	case c.stopped == 0:
		return v1.PodPending
	case in.Terminated && !in.Static:
		return c.endedPhase() // nothing is started again, whatever its policy
	case c.stoppedForGood < c.stopped:
		return v1.PodRunning
	}
	return c.endedPhase()
}

// counts are how many containers are in which state.
type counts struct {
	// initFailed: an init container has failed for good; initPending: one is not done; sidecarPending: one has not
	// started.
	initFailed, initPending, sidecarPending bool
	// running sidecars and containers; containers and sidecars that have never run.
	running, waiting int
	// containers that have run and do not run now; those of them that are not started again, and those that exited with
	// 0.
	stopped, stoppedForGood, succeeded int
}

func (c *counts) endedPhase() v1.PodPhase {
	if c.succeeded == c.stopped {
		return v1.PodSucceeded
	}
	return v1.PodFailed
}

// init counts an init container.
func (c *counts) init(in Inputs, spec *v1.Container, s *v1.ContainerStatus) {
	end := lastEnd(s)
	if restart.IsSidecar(spec) {
		switch {
		case s.State.Running != nil:
			c.running++
			c.sidecarPending = c.sidecarPending || s.Started == nil || !*s.Started
		case end == nil:
			c.waiting++
			c.sidecarPending = true
		}
		return
	}
	switch {
	case s.State.Running != nil, end == nil:
		c.initPending = true
	case end.ExitCode != 0 && staysDown(in, spec, end):
		c.initFailed = true
	}
}

// container counts a container that is not an init container.
func (c *counts) container(in Inputs, spec *v1.Container, s *v1.ContainerStatus) {
	end := lastEnd(s)
	switch {
	case s.State.Running != nil:
		c.running++
	case end == nil:
		c.waiting++
	default:
		c.stopped++
		if staysDown(in, spec, end) {
			c.stoppedForGood++
		}
		if s.State.Terminated != nil && end.ExitCode == 0 {
			c.succeeded++
		}
	}
}

// lastEnd is how a container that does not run ended; nil for one that has never run.
func lastEnd(s *v1.ContainerStatus) *v1.ContainerStateTerminated {
	if s.State.Terminated != nil {
		return s.State.Terminated
	}
	return s.LastTerminationState.Terminated
}

// staysDown reports whether a container is not started again after an end.
func staysDown(in Inputs, spec *v1.Container, end *v1.ContainerStateTerminated) bool {
	return end.Reason != restartingAll && restart.After(in.Pod, spec, end.ExitCode) == restart.Stay
}

// containersCreated reports whether a container was created in the sandbox that is in use: the init containers have
// done their work, then.
func containersCreated(in Inputs) bool {
	box := in.Observed.Sandbox()
	if box == nil || !box.Ready {
		return false
	}
	return slices.ContainsFunc(in.Observed.Containers, func(o *observed.Container) bool {
		return o.SandboxID == box.ID && slices.ContainsFunc(in.Pod.Spec.Containers, func(c v1.Container) bool {
			return c.Name == o.Name
		})
	})
}

// find returns the status of a container, or nil.
func find(list []v1.ContainerStatus, name string) *v1.ContainerStatus {
	if i := slices.IndexFunc(list, func(s v1.ContainerStatus) bool { return s.Name == name }); i >= 0 {
		return &list[i]
	}
	return nil
}
