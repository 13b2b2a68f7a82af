package status

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/observed"
	"github.com/edgecore-io/edgecore/edged/restart"
)

// Reasons of container states.
const (
	containerCreating = "ContainerCreating"
	podInitializing   = "PodInitializing"
	crashLoopBackOff  = "CrashLoopBackOff"
	// postStartHookError: the container was stopped, for its postStart hook failed.
	postStartHookError = "PostStartHookError"
	statusUnknown      = "ContainerStatusUnknown"
	// exitUnknown is the exit code of a container that was lost.
	exitUnknown = 137
)

// containerStatuses makes the statuses of a list of containers, in its order.
func containerStatuses(in Inputs, containers []v1.Container, before []v1.ContainerStatus, init bool) []v1.ContainerStatus {
	var out []v1.ContainerStatus
	for i := range containers {
		c := &containers[i]
		var prev v1.ContainerStatus
		if at := slices.IndexFunc(before, func(s v1.ContainerStatus) bool { return s.Name == c.Name }); at >= 0 {
			prev = before[at]
		}
		s := containerStatus(in, c, prev, init)
		s.VolumeMounts = withImages(volumeMounts(in, c, prev), in.Observed.Container(c.Name))
		s.User = userOf(in.Observed.Container(c.Name))
		out = append(out, s)
	}
	return out
}

func containerStatus(in Inputs, c *v1.Container, prev v1.ContainerStatus, init bool) v1.ContainerStatus {
	attempts := in.Observed.Attempts(c.Name)
	if len(attempts) == 0 {
		return unseen(in, c, prev, init)
	}
	newest := attempts[0]
	s := v1.ContainerStatus{
		Name: c.Name, Image: newest.Image, ImageID: newest.ImageRef, ContainerID: in.Runtime + "://" + newest.ID,
		RestartCount: max(newest.RestartCount, prev.RestartCount), State: state(in, newest),
		AllocatedResources: allocated(c), AllocatedResourcesStatus: in.Devices[c.Name], Resources: in.resources(c),
	}
	s.StopSignal = stopSignal(c, newest)
	switch {
	case len(attempts) > 1 && attempts[1].Exited():
		s.LastTerminationState.Terminated = terminated(in.Runtime, attempts[1])
	case prev.ContainerID == s.ContainerID, prev.ContainerID == "":
		s.LastTerminationState = prev.LastTerminationState
	case prev.State.Terminated != nil:
		s.LastTerminationState.Terminated = prev.State.Terminated // the runtime has forgotten it
	case prev.State.Running != nil:
		s.LastTerminationState.Terminated = lost(in, prev)
	default:
		s.LastTerminationState = prev.LastTerminationState
	}
	why, waits := in.Reasons[c.Name]
	if newest.Exited() && waits && !in.Terminated && restart.After(in.Pod, c, newest.ExitCode) != restart.Stay {
		// Between two attempts the state is the wait, and the end of the last attempt the last state.
		s.LastTerminationState.Terminated = s.State.Terminated
		s.State = v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: why.Reason, Message: why.Message}}
	}
	return s
}

// unseen is the status of a container that the runtime does not have: not yet, or no more.
func unseen(in Inputs, c *v1.Container, prev v1.ContainerStatus, init bool) v1.ContainerStatus {
	s := v1.ContainerStatus{
		Name: c.Name, Image: c.Image, RestartCount: prev.RestartCount, LastTerminationState: prev.LastTerminationState,
		AllocatedResources: allocated(c), AllocatedResourcesStatus: in.Devices[c.Name], Resources: in.resources(c),
	}
	ended := prev.State.Terminated
	switch {
	case ended != nil && (in.Terminated || Terminal(in.Previous.Phase) || (init && ended.ExitCode == 0 && mainStarted(in))):
		s.State, s.Image, s.ImageID, s.ContainerID = prev.State, prev.Image, prev.ImageID, prev.ContainerID
		return s
	case ended != nil:
		s.LastTerminationState.Terminated = ended
	case prev.State.Running != nil:
		s.LastTerminationState.Terminated = lost(in, prev)
	}
	if in.Terminated && prev.Name != "" && prev.State.Waiting == nil {
		s.State.Terminated = lost(in, prev)
		return s
	}
	if in.Terminated {
		s.State.Terminated = &v1.ContainerStateTerminated{Reason: statusUnknown, Message: "The container could not be located when the pod was terminated", ExitCode: exitUnknown}
		return s
	}
	waiting := &v1.ContainerStateWaiting{Reason: containerCreating}
	if !init && len(in.Pod.Spec.InitContainers) > 0 {
		waiting.Reason = podInitializing
	}
	if init && in.Observed.Sandbox() != nil {
		waiting.Reason = podInitializing
	}
	if why, ok := in.Reasons[c.Name]; ok {
		waiting.Reason, waiting.Message = why.Reason, why.Message
	}
	s.State.Waiting = waiting
	return s
}

// mainStarted tells whether a container that is no init container was created already.
func mainStarted(in Inputs) bool {
	return slices.ContainsFunc(in.Pod.Spec.Containers, func(c v1.Container) bool { return in.Observed.Container(c.Name) != nil })
}

// lost is the end of a container that nobody saw.
func lost(in Inputs, prev v1.ContainerStatus) *v1.ContainerStateTerminated {
	t := &v1.ContainerStateTerminated{Reason: statusUnknown, Message: "The container could not be located when the pod was deleted.  The container used to be Running", ExitCode: exitUnknown, ContainerID: prev.ContainerID}
	if prev.State.Running != nil {
		t.StartedAt = prev.State.Running.StartedAt
	}
	return t
}

func state(in Inputs, o *observed.Container) v1.ContainerState {
	switch o.State {
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: at(o.StartedAt)}}
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		return v1.ContainerState{Terminated: terminated(in.Runtime, o)}
	}
	waiting := &v1.ContainerStateWaiting{Reason: containerCreating}
	if why, ok := in.Reasons[o.Name]; ok {
		waiting.Reason, waiting.Message = why.Reason, why.Message
	}
	return v1.ContainerState{Waiting: waiting}
}

func terminated(runtime string, o *observed.Container) *v1.ContainerStateTerminated {
	return &v1.ContainerStateTerminated{
		ExitCode: o.ExitCode, Reason: o.Reason, Message: o.Message,
		StartedAt: at(o.StartedAt), FinishedAt: at(o.FinishedAt), ContainerID: runtime + "://" + o.ID,
	}
}

// at is a time to the second, as it travels: a status restored from the store equals the one stored.
func at(t time.Time) metav1.Time {
	if t.IsZero() {
		return metav1.Time{}
	}
	return metav1.Time{Time: t.Truncate(time.Second)}
}

func allocated(c *v1.Container) v1.ResourceList {
	return c.Resources.Requests.DeepCopy()
}

// resources are the amounts with which a container runs, and those that it was allocated where it does not.
func (in *Inputs) resources(c *v1.Container) *v1.ResourceRequirements {
	if running, ok := in.Running[c.Name]; ok {
		return running.DeepCopy()
	}
	if len(c.Resources.Limits)+len(c.Resources.Requests) == 0 {
		return &v1.ResourceRequirements{}
	}
	return &v1.ResourceRequirements{Limits: c.Resources.Limits.DeepCopy(), Requests: c.Resources.Requests.DeepCopy()}
}
