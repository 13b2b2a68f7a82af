package differential

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/podstate/restart"
	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

// What is compared of a case with Chance: its containers restart, fail and end at times of their own.
var (
	// always are compared as they are: the facts of addFacts, events of what cannot be done, and leftovers.
	always = []string{
		`facts/.*`,
		`pod\.status\.phase`,
		`left/.*`,
		`step/.*`,
		`events/"Warning","(Failed|InspectFailed|FailedMount|FailedCreatePodSandBox)",.*`,
	}
	// never are not compared: an event of the second attempt to pull an image.
	never = []string{`events/.*"Error: ImagePullBackOff"`}
	// shared are compared where both nodes have them: each of them came as far.
	shared = []string{
		`inside/.*`,
		`cri/(RunPodSandbox|CreateContainer/[^.]*)\..*`,
		`pod\.status\.(qosClass|hostIP|podIPs?|resources)\b.*`,
		`pod\.status\.(c|initC)ontainerStatuses\[[^\]]*\]\.(name|image|resources|allocatedResources|volumeMounts|user|stopSignal)\b.*`,
	}
)

// withoutChance removes what chance decides from two traces.
func withoutChance(l, r Trace) {
	drop := func(path string, _ []string) bool {
		if matchesAny(always, path) {
			return matchesAny(never, path)
		}
		return !matchesAny(shared, path) || len(l[path]) == 0 || len(r[path]) == 0
	}
	gone := map[string]bool{}
	for _, t := range []Trace{l, r} {
		for path, values := range t {
			gone[path] = drop(path, values)
		}
	}
	for _, t := range []Trace{l, r} {
		maps.DeleteFunc(t, func(path string, _ []string) bool { return gone[path] })
	}
}

func matchesAny(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return matches(pattern, path) })
}

// addFacts adds what the states of a pod say that does not depend on how often its containers were started: which of
// them ever started, how each ended first, whether it was started again, why it could not start, and how the pod ended.
func addFacts(t Trace, states []*v1.Pod, names Names) {
	waits := map[string][]string{}
	for _, pod := range states {
		alive := pod.DeletionTimestamp == nil
		if alive {
			t["facts/phase"] = []string{string(pod.Status.Phase)}
			t["facts/reason"] = []string{pod.Status.Reason}
		}
		for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			prefix := "facts/" + c.Name + "/"
			if c.ContainerID != "" && c.State.Waiting == nil {
				t[prefix+"started"] = []string{"true"}
			}
			if c.RestartCount > 0 && alive {
				t[prefix+"restarted"] = []string{"true"}
			}
			first := c.LastTerminationState.Terminated
			if first == nil {
				first = c.State.Terminated
			}
			if first != nil && t[prefix+"first-end"] == nil {
				t[prefix+"first-end"] = []string{
					names.Replace(fmt.Sprintf("%d %s %q", first.ExitCode, first.Reason, first.Message)),
				}
			}
			if w := c.State.Waiting; w != nil && refused(c) && !slices.Contains(waits[c.Name], reasonOf(w)) {
				waits[c.Name] = append(waits[c.Name], reasonOf(w))
			}
		}
	}
	for name, reasons := range waits {
		t["facts/"+name+"/waits"] = []string{strings.Join(slices.Sorted(slices.Values(reasons)), " ")}
	}
}

// reasonOf is the reason for which a container waits. An image that cannot be pulled has two of them, in turn.
func reasonOf(w *v1.ContainerStateWaiting) string {
	if w.Reason == "ImagePullBackOff" {
		return "ErrImagePull"
	}
	return w.Reason
}

// refused reports whether a container cannot be started for a reason that lasts.
func refused(c v1.ContainerStatus) bool {
	if c.State.Waiting == nil {
		return false
	}
	switch c.State.Waiting.Reason {
	case "", "ContainerCreating", "PodInitializing", "CrashLoopBackOff", "RunContainerError", "PostStartHookError":
		return false
	}
	return true
}

// What Lived waits for: longer than scripts and probes of random pods take.
const (
	runsOn     = 10 * time.Second // a container without probes that has run for so long runs on
	probedFor  = 20 * time.Second // one with a liveness or startup probe: the probe fails, and its grace period passes
	livedLimit = 40 * time.Second // of Lived itself
	staysEnded = 3 * time.Second  // one that is not to be started again was not by then
)

// Lived waits until each container of a pod has shown what becomes of it: it was started again, stays ended, runs for a
// while, or cannot start. It goes on after livedLimit, since some pods do none of this.
func Lived() Step {
	return Step{Name: "lived", Do: func(ctx context.Context, s *Subject) error {
		within, cancel := context.WithTimeout(ctx, daemon.Scaled(livedLimit))
		defer cancel()
		err := s.until(within, func() error {
			pod, err := s.history.latest(s.Pod.UID)
			if err == nil && !lived(pod, time.Now()) {
				err = errors.New("its containers may still end or start")
			}
			return err
		})
		if within.Err() != nil && ctx.Err() == nil {
			return nil
		}
		return err
	}}
}

// lived reports whether it is known what becomes of each container of a pod.
func lived(pod *v1.Pod, now time.Time) bool {
	if pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed {
		return true
	}
	if pod.Spec.ActiveDeadlineSeconds != nil || len(pod.Status.ContainerStatuses) == 0 {
		return false
	}
	for i, c := range pod.Status.InitContainerStatuses {
		if !shown(pod, &pod.Spec.InitContainers[i], c, now) {
			return false
		}
		end := c.State.Terminated
		done := end != nil && end.ExitCode == 0
		if restart.IsSidecar(&pod.Spec.InitContainers[i]) {
			done = c.Started != nil && *c.Started
		}
		if !done {
			return true // no other container starts before it has
		}
	}
	ended := true
	for i, c := range pod.Status.ContainerStatuses {
		spec := &pod.Spec.Containers[i]
		if !shown(pod, spec, c, now) {
			return false
		}
		end := c.State.Terminated
		ended = ended && end != nil && restart.After(pod, spec, end.ExitCode) == restart.Stay
	}
	return !ended // else its phase is about to be final
}

// shown reports whether a container has ended and started again, stays ended, runs for a while, or cannot start.
func shown(pod *v1.Pod, spec *v1.Container, c v1.ContainerStatus, now time.Time) bool {
	switch end := c.State.Terminated; {
	case c.RestartCount > 0, refused(c):
		return true
	case c.State.Running != nil && (spec.LivenessProbe != nil || spec.StartupProbe != nil):
		return now.Sub(c.State.Running.StartedAt.Time) > probedFor
	case c.State.Running != nil:
		return now.Sub(c.State.Running.StartedAt.Time) > runsOn
	case end != nil && restart.After(pod, spec, end.ExitCode) == restart.Stay:
		return now.Sub(end.FinishedAt.Time) > staysEnded
	}
	return false
}
