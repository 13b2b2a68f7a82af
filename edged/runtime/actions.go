package runtime

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/observed"
)

// Actions is what brings a pod one step nearer to its spec. The steps are in the order in which
// they are carried out.
type Actions struct {
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
}

// Start is a container to start.
type Start struct {
	Container *v1.Container
	// Init containers, sidecars among them.
	Init bool
	// Gate: what comes after it in the list waits until it was started.
	Gate bool
	// Last is the newest attempt that was there before, or nil.
	Last *observed.Container
}

// None tells whether there is nothing to do.
func (a Actions) None() bool {
	return !a.KillPod && !a.CreateSandbox && len(a.Kill) == 0 && len(a.Start) == 0
}

// computeActions decides on the next step from the pod's spec and what the runtime has. It is pure.
//
//   - A sandbox that is gone, dead, doubled or on the wrong network is replaced, and with it all
//     containers; unless everything in the pod has ended for good.
//   - Init containers run one after another, each until it ends well. They run again in a new sandbox,
//     but never once a container was created in this one. Sidecars are init containers that keep running.
//   - A container that runs with the hash of its spec is left alone, whoever started it.
//   - A container that was created and never started, or is in an unknown state, is replaced.
func computeActions(pod *v1.Pod, obs *observed.Pod) Actions {
	change, attempt := sandboxChange(pod, obs)
	if change {
		return replaceSandbox(pod, obs, attempt)
	}
	a := Actions{SandboxID: obs.Sandbox().ID}
	if !initialized(pod, obs) {
		done, failed := initActions(pod, obs, &a)
		if failed {
			a.Start = nil
			killRunning(obs, &a, "An init container failed, and the pod's restart policy is Never")
			return a
		}
		if !done {
			return a
		}
	} else {
		sidecarActions(pod, obs, &a)
	}
	for i := range pod.Spec.Containers {
		containerAction(pod, obs, Start{Container: &pod.Spec.Containers[i]}, &a)
	}
	return a
}

// sandboxChange tells whether the pod needs a new sandbox, and with which attempt number.
func sandboxChange(pod *v1.Pod, obs *observed.Pod) (bool, uint32) {
	newest := obs.Sandbox()
	if newest == nil {
		return true, 0
	}
	ready := 0
	for _, s := range obs.Sandboxes {
		if s.Ready {
			ready++
		}
	}
	switch {
	case ready != 1 || !newest.Ready,
		newest.HostNetwork != pod.Spec.HostNetwork,
		!pod.Spec.HostNetwork && len(newest.IPs) == 0:
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
		// What still runs dies with the old sandbox, and ends for good if the pod never restarts.
		if last.Running() && pod.Spec.RestartPolicy == v1.RestartPolicyNever {
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
	if len(pod.Spec.InitContainers) > 0 {
		first := &pod.Spec.InitContainers[0]
		a.Start = []Start{{Container: first, Init: true, Gate: true, Last: obs.Container(first.Name)}}
		return a
	}
	a.Start = start
	return a
}

// initFailedForGood tells whether an init container of a pod that never restarts has failed.
func initFailedForGood(pod *v1.Pod, obs *observed.Pod) bool {
	if pod.Spec.RestartPolicy != v1.RestartPolicyNever {
		return false
	}
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c v1.Container) bool {
		last := obs.Container(c.Name)
		return !isSidecar(&c) && last.Exited() && last.ExitCode != 0
	})
}

// initialized tells whether a container was already created in the present sandbox, which only
// happens when all init containers have ended well.
func initialized(pod *v1.Pod, obs *observed.Pod) bool {
	sandbox := obs.Sandbox().ID
	return slices.ContainsFunc(pod.Spec.Containers, func(c v1.Container) bool {
		return slices.ContainsFunc(obs.Attempts(c.Name), func(o *observed.Container) bool { return o.SandboxID == sandbox })
	})
}

// initActions finds the init container that is next. done: all have ended well. failed: one has
// failed for good.
func initActions(pod *v1.Pod, obs *observed.Pod, a *Actions) (done, failed bool) {
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		last := obs.Container(c.Name)
		if last != nil && last.SandboxID != a.SandboxID {
			last = nil // of an earlier sandbox: it runs again in this one
		}
		passed := isSidecar(c) && last != nil && wentOn(pod, obs, i)
		s := Start{Container: c, Init: true, Gate: !passed}
		switch {
		case last.Running() && isSidecar(c):
			if last.Hash == Hash(c) {
				continue
			}
			containerAction(pod, obs, s, a)
			if passed {
				continue
			}
			return false, false
		case last.Running():
			return false, false
		case last.Exited() && !isSidecar(c) && last.ExitCode == 0:
			continue
		case last.Exited() && !isSidecar(c) && pod.Spec.RestartPolicy == v1.RestartPolicyNever:
			return false, true
		}
		begin(s, last, obs, a)
		if !passed {
			return false, false
		}
	}
	return true, false
}

// wentOn tells whether an init container after the i-th was created in the present sandbox: the i-th, a
// sidecar, has run then, and holds up nobody when it has to be started again.
func wentOn(pod *v1.Pod, obs *observed.Pod, i int) bool {
	sandbox := obs.Sandbox().ID
	return slices.ContainsFunc(pod.Spec.InitContainers[i+1:], func(c v1.Container) bool {
		return slices.ContainsFunc(obs.Attempts(c.Name), func(o *observed.Container) bool { return o.SandboxID == sandbox })
	})
}

// doneForGood tells whether no container of the pod is to run again; its sidecars have nobody to serve then.
func doneForGood(pod *v1.Pod, obs *observed.Pod) bool {
	return !slices.ContainsFunc(pod.Spec.Containers, func(c v1.Container) bool { return restarts(pod, &c, obs.Container(c.Name)) })
}

// sidecarActions keeps the sidecars of an initialized pod running.
func sidecarActions(pod *v1.Pod, obs *observed.Pod, a *Actions) {
	if doneForGood(pod, obs) {
		return
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; isSidecar(c) {
			containerAction(pod, obs, Start{Container: c, Init: true}, a)
		}
	}
}

// containerAction decides on the container of s in a usable sandbox.
func containerAction(pod *v1.Pod, obs *observed.Pod, s Start, a *Actions) {
	c := s.Container
	last := obs.Container(c.Name)
	if last.Running() {
		switch {
		case last.Hash != Hash(c):
			a.Kill = append(a.Kill, Kill{last.ID, c.Name, fmt.Sprintf("Container %s definition changed, will be restarted", c.Name)})
		case last.SandboxID != a.SandboxID:
			a.Kill = append(a.Kill, Kill{last.ID, c.Name, fmt.Sprintf("Container %s is in a sandbox that is no longer used, will be restarted", c.Name)})
		default:
			return
		}
		s.Last = last
		a.Start = append(a.Start, s)
		return
	}
	if restarts(pod, c, last) {
		begin(s, last, obs, a)
	}
}

// begin starts a container, and first stops what is left of it in a state that nobody knows.
func begin(s Start, last *observed.Container, obs *observed.Pod, a *Actions) {
	c := s.Container
	if last != nil && last.State == runtimeapi.ContainerState_CONTAINER_UNKNOWN {
		a.Kill = append(a.Kill, Kill{last.ID, c.Name, fmt.Sprintf("Container %s is in an unknown state, try killing it before restart", c.Name)})
	}
	if last == nil {
		last = obs.Container(c.Name) // of an earlier sandbox: its attempt number and backoff count on
	}
	s.Last = last
	a.Start = append(a.Start, s)
}

// restarts tells whether a container that does not run is to be started under the restart policy.
func restarts(pod *v1.Pod, c *v1.Container, last *observed.Container) bool {
	if last == nil || !last.Exited() || isSidecar(c) {
		return true
	}
	switch pod.Spec.RestartPolicy {
	case v1.RestartPolicyNever:
		return false
	case v1.RestartPolicyOnFailure:
		return last.ExitCode != 0
	}
	return true
}

// killRunning stops whatever runs.
func killRunning(obs *observed.Pod, a *Actions, why string) {
	for _, c := range obs.Containers {
		if c.Running() {
			a.Kill = append(a.Kill, Kill{c.ID, c.Name, why})
		}
	}
}
