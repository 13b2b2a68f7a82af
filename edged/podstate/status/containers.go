package status

import (
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/restart"
)

// Reasons of container states, and the messages that go with them.
const (
	containerCreating = "ContainerCreating"
	podInitializing   = "PodInitializing"

	completed        = "Completed"
	completedMessage = "Unable to get init container status from container runtime and pod has been initialized, " +
		"treat it as exited normally"

	restartingAll        = "RestartingAllContainers"
	restartingAllMessage = "The container is removed because RestartAllContainers in place"

	statusUnknown    = "ContainerStatusUnknown"
	lostMessage      = "The container could not be located when the pod was deleted.  The container used to be Running"
	lostAtEndMessage = "The container could not be located when the pod was terminated"
	// exitUnknown is the exit code of a container that was lost.
	exitUnknown = 137

	// maxMessages is how many bytes of termination messages a status has, shared evenly by the containers of the spec.
	maxMessages = 12 << 10
)

// IsStarting reports whether a container that waits is in the course of its start: nothing keeps it from running.
func IsStarting(w *v1.ContainerStateWaiting) bool {
	return w.Reason == "" || w.Reason == containerCreating || w.Reason == podInitializing
}

// containerStatuses makes the statuses of a list of containers, in its order.
func containerStatuses(
	in Inputs, containers []v1.Container, before []v1.ContainerStatus, init bool,
) []v1.ContainerStatus {
	var out []v1.ContainerStatus
	for i := range containers {
		c := &containers[i]
		s := containerStatus(in, c, find(before, c.Name), init)
		in.shorten(&s.State)
		in.shorten(&s.LastTerminationState)
		out = append(out, s)
	}
	return out
}

// containerStatus makes the status of a container. prev is the previous one, or nil.
func containerStatus(in Inputs, c *v1.Container, prev *v1.ContainerStatus, init bool) v1.ContainerStatus {
	if prev != nil && prev.State.Terminated != nil && Terminal(in.Previous.Phase) {
		return *prev // what has ended stays as it ended
	}
	var s v1.ContainerStatus
	newest := in.Observed.Container(c.Name)
	if newest == nil {
		s = missing(in, c, prev)
	} else {
		s = seen(in, c, prev)
	}
	if init {
		switch {
		case newest.Exited() && newest.ExitCode == 0:
			return s // the kubelet does so even for a sidecar, which will be restarted
		case !restart.IsSidecar(c) && newest == nil && s.State.Waiting != nil && !in.restarting() &&
			anyContainerCreated(in):
			s.State = v1.ContainerState{
				Terminated: &v1.ContainerStateTerminated{Reason: completed, Message: completedMessage},
			}
			return s
		}
	}
	if why, ok := in.Reasons[c.Name]; ok && startsNext(in, c, newest) {
		// Between two attempts the state is the wait, and the end of the last attempt the last state.
		if s.State.Terminated != nil {
			s.LastTerminationState = s.State
		}
		s.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: why.Reason, Message: why.Message}}
	}
	return s
}

// startsNext reports whether a container is to be started, or would be if nothing stood in the way.
func startsNext(in Inputs, c *v1.Container, newest *observed.Container) bool {
	switch {
	case in.Pod.DeletionTimestamp != nil, newest.Running():
		return false
	case newest.Exited():
		return restart.After(in.Pod, c, newest.ExitCode) != restart.Stay
	}
	return true
}

// missing is the status of a container that the runtime does not have: not yet, or no more. One that has ended
// remains as it ended until it is started again. One that ran counts as a failed attempt.
func missing(in Inputs, c *v1.Container, prev *v1.ContainerStatus) v1.ContainerStatus {
	waiting := &v1.ContainerStateWaiting{Reason: containerCreating}
	if len(in.Pod.Spec.InitContainers) > 0 {
		waiting.Reason = podInitializing
	}
	s := v1.ContainerStatus{
		Name: c.Name, Image: c.Image, State: v1.ContainerState{Waiting: waiting},
		VolumeMounts: volumeMounts(in, c, nil), AllocatedResourcesStatus: in.Devices[c.Name],
	}
	switch {
	case prev == nil:
	case prev.State.Terminated != nil:
		s = *prev
	default:
		s.RestartCount, s.LastTerminationState = prev.RestartCount, prev.LastTerminationState
	}
	switch {
	case prev == nil:
	case in.restarting() && prev.State.Waiting == nil:
		s.State = v1.ContainerState{
			Waiting: &v1.ContainerStateWaiting{Reason: restartingAll, Message: restartingAllMessage},
		}
		s.LastTerminationState.Terminated = &v1.ContainerStateTerminated{
			Reason: restartingAll, Message: restartingAllMessage, ExitCode: exitUnknown,
		}
		s.RestartCount = prev.RestartCount + 1
	case prev.State.Waiting != nil && prev.State.Waiting.Reason == restartingAll && in.removed():
		s = *prev // until the first of them is created
	case prev.State.Running != nil && prev.LastTerminationState.Terminated == nil:
		s.LastTerminationState.Terminated = &v1.ContainerStateTerminated{Reason: statusUnknown, Message: lostMessage,
			ExitCode: exitUnknown}
		if in.Pod.DeletionTimestamp == nil {
			s.RestartCount++
		}
	}
	return s
}

// seen is the status of a container that the runtime has.
func seen(in Inputs, c *v1.Container, prev *v1.ContainerStatus) v1.ContainerStatus {
	attempts := in.Observed.Attempts(c.Name)
	newest := attempts[0]
	s := v1.ContainerStatus{
		Name:                     c.Name,
		Image:                    newest.Image,
		ImageID:                  newest.ImageRef,
		ContainerID:              in.Runtime + "://" + newest.ID,
		RestartCount:             newest.RestartCount,
		VolumeMounts:             withImages(volumeMounts(in, c, prev), newest),
		Resources:                in.resources(c),
		AllocatedResources:       c.Resources.Requests.DeepCopy(),
		AllocatedResourcesStatus: in.Devices[c.Name],
		User:                     userOf(newest),
		StopSignal:               stopSignal(c, newest),
	}
	if prev != nil {
		s.RestartCount = max(s.RestartCount, prev.RestartCount)
		s.LastTerminationState.Terminated = prev.LastTerminationState.Terminated
		if prev.ContainerID != s.ContainerID && prev.State.Terminated != nil {
			s.LastTerminationState.Terminated = prev.State.Terminated
		}
	}
	if len(attempts) > 1 && attempts[1].Exited() {
		s.LastTerminationState.Terminated = terminated(in.Runtime, attempts[1])
	}
	switch newest.State {
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		s.State.Running = &v1.ContainerStateRunning{StartedAt: at(newest.StartedAt)}
		if prev != nil && prev.State.Terminated != nil && prev.RestartCount >= newest.RestartCount {
			s.RestartCount = prev.RestartCount + 1
		}
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		s.State.Terminated = terminated(in.Runtime, newest)
	default:
		setUnknown(in, newest, prev, &s)
	}
	return s
}

// setUnknown sets the state of a container that was created and not started, or whose state the runtime does not know:
// it waits. One that ran before has ended in an unknown way.
func setUnknown(in Inputs, newest *observed.Container, prev, s *v1.ContainerStatus) {
	s.State.Waiting = &v1.ContainerStateWaiting{}
	if newest.State != runtimeapi.ContainerState_CONTAINER_UNKNOWN || prev == nil {
		return
	}
	switch {
	case prev.State.Running != nil:
		reason := statusUnknown
		if in.restarting() {
			reason = restartingAll
		}
		s.State = v1.ContainerState{
			Terminated: &v1.ContainerStateTerminated{Reason: reason, Message: lostAtEndMessage, ExitCode: exitUnknown},
		}
		s.RestartCount = prev.RestartCount + 1
	case prev.State.Terminated != nil && prev.ContainerID == s.ContainerID:
		s.State = prev.State
	}
}

// anyContainerCreated reports whether a container that is not an init container was created, in whichever sandbox.
func anyContainerCreated(in Inputs) bool {
	return slices.ContainsFunc(in.Pod.Spec.Containers, func(c v1.Container) bool {
		o := in.Observed.Container(c.Name)
		return o != nil && o.State != runtimeapi.ContainerState_CONTAINER_UNKNOWN
	})
}

func terminated(runtime string, o *observed.Container) *v1.ContainerStateTerminated {
	return &v1.ContainerStateTerminated{
		ExitCode: o.ExitCode, Reason: o.Reason, Message: o.Message,
		StartedAt: at(o.StartedAt), FinishedAt: at(o.FinishedAt), ContainerID: runtime + "://" + o.ID,
	}
}

// shorten cuts the message of a container that has ended to its share of what a status has.
func (in *Inputs) shorten(s *v1.ContainerState) {
	spec := &in.Pod.Spec
	limit := maxMessages / max(1, len(spec.InitContainers)+len(spec.Containers)+len(spec.EphemeralContainers))
	if t := s.Terminated; t != nil && len(t.Message) > limit {
		short := *t // the previous status is not changed
		short.Message = strings.ToValidUTF8(t.Message[:limit], "")
		s.Terminated = &short
	}
}

// at truncates a time to the second, which is all that JSON keeps: a status restored from the store equals the one
// stored.
func at(t time.Time) metav1.Time {
	if t.IsZero() {
		return metav1.Time{}
	}
	return metav1.Time{Time: t.Truncate(time.Second)}
}

// resources are the amounts with which a container runs, or, if it does not run, those that it was allocated.
func (in *Inputs) resources(c *v1.Container) *v1.ResourceRequirements {
	if running, ok := in.Running[c.Name]; ok {
		return running.DeepCopy()
	}
	if len(c.Resources.Limits)+len(c.Resources.Requests) == 0 {
		return &v1.ResourceRequirements{}
	}
	return &v1.ResourceRequirements{Limits: c.Resources.Limits.DeepCopy(), Requests: c.Resources.Requests.DeepCopy()}
}
