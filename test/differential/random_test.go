package differential

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/conformance"
	"github.com/edgecore-io/edgecore/test/testenv/env"
)

// TestRandomPods runs pods that are made by chance, of three kinds in turn: steady pods run until they are deleted, and pods
// that end do so in a way that their spec decides; all that is seen of both is compared. The rest restart, fail and end at
// times of their own, so what does not depend on that is compared; see [Case].Chance.
func TestRandomPods(t *testing.T) {
	p := startPair(t, supported())
	for _, s := range []*Side{p.left, p.right} {
		objects := strings.NewReplacer("@NODE@", s.Name, "@DIR@", s.Dir).Replace(conformance.RandomObjects)
		env.Must(t, p.cluster.Kube.ApplyIn(t.Context(), s.Name, objects))
	}
	t.Run("pods", func(t *testing.T) {
		for i := range *podsFlag {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				defer func() {
					if t.Failed() {
						t.Logf("this pod alone: -run 'TestRandomPods/pods/%d$' -pods %d -seed %d", i, i+1, *seedFlag)
					}
				}()
				p.compare(t, randomCase(i))
			})
		}
	})
}

// randomCase is a pod made by chance, which is the same for the same seed and number.
func randomCase(i int) Case {
	random := rand.New(rand.NewPCG(*seedFlag, uint64(i)))
	spec := conformance.RandomSpec(random, "@DIR@/@NAME@")
	if spec.DNSConfig != nil {
		spec.DNSConfig.Options = nil // a kubelet puts those of the pod and of the node into an order by chance
	}
	eachContainer(&spec, func(c *v1.Container) {
		if c.Lifecycle != nil {
			c.Lifecycle.StopSignal = nil // see the row stop-signal of the conformance suite
		}
	})
	c := Case{
		Name:   fmt.Sprintf("random-%d", i),
		Pod:    &spec,
		Labels: map[string]string{"app": "random"},
		Steps:  []Step{Settled(), Inspect()},
		// In which order containers become ready, and which of them share a report, depends on time.
		Ends: []string{`pod\.status\.conditions\[(Ready|ContainersReady|Initialized)\]\.(message|reason)`},
	}
	switch i % 3 {
	case 0:
		steady(&spec, random)
	case 1:
		ending(&spec, random)
		c.Steps = []Step{Until("ended", ended)}
	default:
		c.Chance = true
		c.Steps = []Step{Lived(), Inspect()}
	}
	return c
}

// steady changes a spec so that its containers run until they are stopped, with probes and hooks that succeed.
func steady(spec *v1.PodSpec, random *rand.Rand) {
	spec.ActiveDeadlineSeconds = nil
	eachContainer(spec, func(c *v1.Container) {
		c.Command = []string{"sh", "-c", forever}
		succeed := v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"true"}}}
		for _, probe := range []*v1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
			if probe != nil {
				probe.ProbeHandler, probe.TimeoutSeconds, probe.FailureThreshold = succeed, 10, 10
			}
		}
		if c.Lifecycle != nil {
			hook := &v1.LifecycleHandler{Exec: succeed.Exec}
			c.Lifecycle.PostStart, c.Lifecycle.PreStop = hook, nil
			if random.IntN(2) == 0 {
				c.Lifecycle.PreStop = hook
			}
		}
	})
	endInits(spec, "sleep 2")
}

// ending changes a spec so that its containers, but for sidecars, end once, each in a way of its own, after all of them were
// started.
func ending(spec *v1.PodSpec, random *rand.Rand) {
	scripts := []string{"sleep 4", "sleep 4; exit 3", "sleep 4; echo bye >/dev/termination-log; exit 1", "sleep 4; kill -9 $$"}
	spec.ActiveDeadlineSeconds = nil
	spec.RestartPolicy = v1.RestartPolicyNever
	eachContainer(spec, func(c *v1.Container) {
		c.Command = []string{"sh", "-c", scripts[random.IntN(len(scripts))]}
		c.LivenessProbe, c.ReadinessProbe, c.StartupProbe, c.Lifecycle = nil, nil, nil, nil
		c.RestartPolicyRules = nil
	})
	for i := range spec.Containers {
		spec.Containers[i].RestartPolicy = nil
	}
	for i := range spec.InitContainers {
		if c := &spec.InitContainers[i]; c.RestartPolicy != nil {
			c.Command = []string{"sh", "-c", forever}
		}
	}
	endInits(spec, []string{"sleep 2", "sleep 2", "sleep 2; exit 1"}[random.IntN(3)])
}

// ended returns an error while a container of a pod runs, or may still start.
func ended(pod *v1.Pod) error {
	if pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed {
		return nil
	}
	if slices.ContainsFunc(pod.Status.InitContainerStatuses, refused) {
		return nil // no other container starts
	}
	if !slices.ContainsFunc(pod.Status.ContainerStatuses, refused) {
		return fmt.Errorf("phase is %s, want Succeeded or Failed", pod.Status.Phase)
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Terminated == nil && !refused(c) {
			return fmt.Errorf("state of %s is %+v, want that it has ended or cannot start", c.Name, c.State)
		}
	}
	return nil
}

// endInits has the init containers that are not sidecars run a script.
func endInits(spec *v1.PodSpec, script string) {
	for i := range spec.InitContainers {
		if c := &spec.InitContainers[i]; c.RestartPolicy == nil {
			c.Command = []string{"sh", "-c", script}
			c.LivenessProbe, c.ReadinessProbe, c.StartupProbe, c.Lifecycle = nil, nil, nil, nil
		}
	}
}

func eachContainer(spec *v1.PodSpec, do func(*v1.Container)) {
	for _, list := range [][]v1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			do(&list[i])
		}
	}
}
