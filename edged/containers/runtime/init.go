package runtime

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/restart"
)

// initState is how far the init containers of a pod are.
type initState int

const (
	// initGoing: one of them runs, or is to be started.
	initGoing initState = iota
	// initDone: the containers may start: all have ended well, and the sidecars have started or are
	// started before them.
	initDone
	// initFailed: one has failed for good, and with it the pod.
	initFailed
)

// initialized reports whether a container was already created in a sandbox, which only happens when all init
// containers have done their work.
func initialized(pod *v1.Pod, obs *observed.Pod, sandbox string) bool {
	return slices.ContainsFunc(pod.Spec.Containers, func(c v1.Container) bool {
		return createdIn(obs, sandbox, c.Name)
	})
}

func createdIn(obs *observed.Pod, sandbox, name string) bool {
	return slices.ContainsFunc(obs.Attempts(name), func(o *observed.Container) bool { return o.SandboxID == sandbox })
}

// initActions finds the init containers that are next in the sandbox of a; none is there yet when it is to be
// created. Those that run in order are gates to what follows them.
func initActions(pod *v1.Pod, obs *observed.Pod, probes observed.Probes, a *Actions) initState {
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		last := obs.Container(c.Name)
		if last != nil && last.SandboxID != a.SandboxID {
			last = nil // of an earlier sandbox: it runs again in this one
		}
		if restart.IsSidecar(c) {
			if !initSidecar(pod, obs, probes, i, last, a) {
				return initGoing
			}
			continue
		}
		switch {
		case last.Running():
			return initGoing
		case last.Exited() && restart.After(pod, c, last.ExitCode) == restart.Stay:
			if last.ExitCode != 0 {
				a.Start = nil
				return initFailed
			}
			continue
		}
		addStart(Start{Container: c, Init: true, Gate: true}, last, obs, a)
		return initGoing
	}
	return initDone
}

// initSidecar decides on the i-th init container, a sidecar, while the pod is not initialized. It returns whether
// what follows may go on.
func initSidecar(
	pod *v1.Pod, obs *observed.Pod, probes observed.Probes, i int, last *observed.Container, a *Actions,
) bool {
	c := &pod.Spec.InitContainers[i]
	passed := wentOn(pod, obs, i, a.SandboxID)
	before := len(a.Start)
	if last.Running() {
		containerAction(pod, obs, probes, Start{Container: c, Init: true, Gate: !passed}, a)
	} else {
		addStart(Start{Container: c, Init: true, Gate: !passed}, last, obs, a)
	}
	switch {
	case passed:
		return true
	case len(a.Start) > before:
		return c.StartupProbe == nil // it is started first, and has started then
	}
	return probes.Of(last).Started
}

// wentOn reports whether an init container after the i-th was created in a sandbox: the i-th, a sidecar, has started
// then, and no container waits for it when it has to be started again.
func wentOn(pod *v1.Pod, obs *observed.Pod, i int, sandbox string) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers[i+1:], func(c v1.Container) bool {
		return createdIn(obs, sandbox, c.Name)
	})
}

// sidecarActions keeps the sidecars of an initialized pod running, as long as they have containers to serve.
func sidecarActions(pod *v1.Pod, obs *observed.Pod, probes observed.Probes, a *Actions) {
	if containersEnded(pod, obs) {
		return
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; restart.IsSidecar(c) {
			containerAction(pod, obs, probes, Start{Container: c, Init: true}, a)
		}
	}
}
