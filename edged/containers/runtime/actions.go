package runtime

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// Actions is what brings a pod one step nearer to its spec. The steps are in the order in which
// they are carried out.
type Actions struct {
	// StartOver stops every container with the shortest grace period and removes them all; the pod is started from its
	// first init container in the same sandbox by the next step. Nothing else is to be done beside it.
	StartOver bool
	// KillPod stops all containers and sandboxes first: the sandbox is no longer usable.
	KillPod bool
	// Kill names containers to stop.
	Kill []Kill
	// CreateSandbox asks for a sandbox with the attempt number Attempt.
	CreateSandbox bool
	Attempt       uint32
	// SandboxID is the sandbox to use when none is created.
	SandboxID string
	// Start are the containers to start, init containers first, in order.
	Start []Start
}

// Kill is a container to stop, and why.
type Kill struct {
	ID, Name string
	Message  string
	// Grace, in seconds, is that of the probe which failed; nil: the pod's.
	Grace *int64
}

// Start is a container to start.
type Start struct {
	Container *v1.Container
	// Init containers, sidecars among them.
	Init bool
	// Target names the container whose processes an ephemeral container sees; empty: none.
	Target string
	// Gate: what comes after it in the list waits until it was started.
	Gate bool
	// Last is the newest attempt that was there before, or nil.
	Last *observed.Container
}

// None reports whether there is nothing to do.
func (a Actions) None() bool {
	return !a.StartOver && !a.KillPod && !a.CreateSandbox && len(a.Kill) == 0 && len(a.Start) == 0
}

// Decide is the decision that SyncPod carries out, for those who want to know it beforehand. It is pure.
func Decide(pod *v1.Pod, obs *observed.Pod, probes observed.Probes) Actions {
	return computeActions(pod, obs, probes)
}

// computeActions decides on the next step from the pod's spec, what the runtime has and what the probes say. It
// is pure.
//
//   - A container that ended as a rule for the whole pod describes starts the pod over (restart.go).
//   - A sandbox that is gone, dead, doubled or on the wrong network is replaced, and with it all
//     containers; unless everything in the pod has ended for good (replace.go).
//   - Init containers run one after another, each until it ends well. They run again in a new sandbox,
//     but never once a container was created in this one. Sidecars are init containers that keep running (init.go).
//   - A container that runs with the hash of its spec is left alone, no matter who started it (Options.Hash), unless
//     its startup or liveness probe has failed for good.
//   - A container that was created and never started, or is in an unknown state, is replaced.
//   - When all containers have ended for good, the pod is stopped with its sidecars.
//   - Ephemeral containers are started once, as soon as there is a sandbox.
func computeActions(pod *v1.Pod, obs *observed.Pod, probes observed.Probes) Actions {
	if restartsAllContainers(pod, obs) {
		return Actions{StartOver: true}
	}
	change, attempt := sandboxChange(pod, obs)
	if change {
		return replaceSandbox(pod, obs, attempt)
	}
	a := Actions{SandboxID: obs.Sandbox().ID}
	ephemeralActions(pod, obs, &a)
	if initialized(pod, obs, a.SandboxID) {
		sidecarActions(pod, obs, probes, &a)
	} else if initActions(pod, obs, probes, &a) != initDone {
		return a
	}
	if containersEnded(pod, obs) && sidecarsRun(pod, obs) {
		return Actions{KillPod: true, SandboxID: a.SandboxID}
	}
	for i := range pod.Spec.Containers {
		containerAction(pod, obs, probes, Start{Container: &pod.Spec.Containers[i]}, &a)
	}
	return a
}

// containersEnded reports whether all containers have ended for good. Its sidecars have nothing left to serve then.
func containersEnded(pod *v1.Pod, obs *observed.Pod) bool {
	return !slices.ContainsFunc(pod.Spec.Containers, func(c v1.Container) bool {
		return restarts(pod, &c, obs.Container(c.Name))
	})
}

// sidecarsRun reports whether a sidecar runs. Without one the pod's status is final by then, and its worker stops it.
func sidecarsRun(pod *v1.Pod, obs *observed.Pod) bool {
	return slices.ContainsFunc(sidecars(pod), func(c v1.Container) bool { return obs.Container(c.Name).Running() })
}

// ephemeralActions starts the ephemeral containers that were never started. Nothing waits for them.
func ephemeralActions(pod *v1.Pod, obs *observed.Pod, a *Actions) {
	for i := range pod.Spec.EphemeralContainers {
		e := &pod.Spec.EphemeralContainers[i]
		last := obs.Container(e.Name)
		if last == nil || last.State == runtimeapi.ContainerState_CONTAINER_CREATED {
			c := v1.Container(e.EphemeralContainerCommon)
			a.Start = append(a.Start, Start{Container: &c, Target: e.TargetContainerName, Last: last})
		}
	}
}
