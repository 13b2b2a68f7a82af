package differential

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/conformance"
)

// TestConformance runs the pods of the conformance suite on both nodes.
func TestConformance(t *testing.T) {
	p := startPair(t, supported())
	t.Run("rows", func(t *testing.T) {
		for _, pod := range conformance.Pods() {
			t.Run(pod.Name, func(t *testing.T) {
				t.Parallel()
				p.compare(t, rowCase(pod))
			})
		}
	})
}

// rowCase is the case of a pod of the conformance suite.
func rowCase(pod conformance.Pod) Case {
	c := Case{
		Name:        pod.Name,
		Objects:     pod.Objects,
		Spec:        pod.Spec,
		Labels:      pod.Labels,
		Annotations: pod.Annotations,
		Steps:       rowSteps(pod.Name),
	}
	switch pod.Name {
	case "restart-rules", "restart-on-failure", "init-restart-rules", "restart-all-containers":
		// Several containers end within milliseconds, in either order.
		c.Ends = []string{`pod\.status\.conditions\[(Ready|ContainersReady)\]\.(message|reason|status)`}
	case "sidecar-start-order":
		c.Ends = []string{`pod\.status\.conditions\[Initialized\]\.message`} // the last one runs for milliseconds
	}
	return c
}

// rowSteps are the steps of a row. Most rows settle; those whose containers fail, restart or never start wait for a
// state that both nodes reach in the same way.
func rowSteps(row string) []Step {
	switch row {
	case "init-restart-rules", "sidecar-start-order", "post-start":
		return []Step{Running(), Inspect()}
	case "restart-rules", "probe-liveness-never", "status-failed", "restart-never", "sidecar-failed-job",
		"emptydir-limit", "ephemeral-storage-limit", "termination-message":
		return []Step{Phase(v1.PodFailed)}
	case "active-deadline-waiting":
		return []Step{Phase(v1.PodFailed), Terminated("main")}
	case "restart-on-failure", "status-succeeded", "sidecar-job", "termination-message-size",
		"termination-message-total", "post-start-fails-never":
		return []Step{Phase(v1.PodSucceeded)}
	case "status-restarts", "status-oom-killed", "probe-startup-fails":
		return []Step{BackedOff("main", 1)}
	case "post-start-fails":
		return []Step{BackedOff("exec", 1), BackedOff("tcp", 1)}
	case "restart-always":
		return []Step{BackedOff("main", 1)}
	case "sidecar-restarts":
		return []Step{Restarted("side", 2), Terminated("side")}
	case "container-restart-policy":
		return []Step{BackedOff("again", 1)}
	case "restart-all-containers":
		return []Step{Restarted("watcher", 1), Restarted("main", 1)}
	case "termination-grace-of-probe":
		return []Step{BackedOff("live", 1), BackedOff("start", 1)}
	case "probe-exec", "probe-exec-timeout":
		return []Step{Event("Unhealthy"), Inspect()}
	case "env-file":
		return []Step{Waiting("missing", "CreateContainerConfigError"), Waiting("bad", "CreateContainerConfigError"),
			Inspect()}
	}
	return []Step{Settled(), Inspect()}
}
