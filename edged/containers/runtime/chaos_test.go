package runtime

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// chaosRounds are the faults of one life, chaosLives and longChaosLives the lives, by default and with -long.
const (
	chaosRounds    = 25
	chaosLives     = 6
	longChaosLives = 60
)

// TestChaos: whatever dies, whichever call fails or loses its answer, the pod comes back whole: one sandbox,
// each container once, little left behind; and what a fault did not touch keeps running.
func TestChaos(t *testing.T) {
	lives := chaosLives
	if *long {
		lives = longChaosLives
	}
	for seed := range uint64(lives) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			chaos(t, seed)
		})
	}
}

func chaos(t *testing.T, seed uint64) {
	g := newDirectRig(t)
	g.backoff = newBackoff(time.Nanosecond)
	g.fake.SetClock(func() time.Time { return time.Now().Add(-time.Hour) }) // sandboxes have lived
	r := rand.New(rand.NewPCG(seed, 1))
	pod := testPod(v1.RestartPolicyAlways, 2, 3)
	for i := range pod.Spec.InitContainers { // those that end would need someone to end them
		pod.Spec.InitContainers[i].RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
	}
	g.heal(pod, seed, "the start")
	for range chaosRounds {
		what, spared := g.hurt(r, pod)
		g.heal(pod, seed, what)
		after := g.observe(pod)
		for _, id := range spared {
			if c := find(after, id); !c.Running() {
				t.Fatalf("seed %d: container %s after %s = %+v, want it running", seed, id, what, c)
			}
		}
	}
}

// hurt does one fault, and returns the containers that must not feel it.
func (g *fixture) hurt(r *rand.Rand, pod *v1.Pod) (what string, spared []string) {
	g.t.Helper()
	obs := g.observe(pod)
	victim := obs.Containers[r.IntN(len(obs.Containers))]
	for _, c := range obs.Containers {
		if c.Running() && c.Name != victim.Name {
			spared = append(spared, c.ID)
		}
	}
	newest := obs.Container(victim.Name)
	must := func(err error) {
		if err != nil {
			g.t.Fatal(err)
		}
	}
	switch r.IntN(6) {
	case 0:
		must(g.fake.Exit(newest.ID, int32(r.IntN(2))))
		return "the end of a container", spared
	case 1:
		must(g.fake.SetState(newest.ID, runtimeapi.ContainerState_CONTAINER_UNKNOWN))
		return "a container in an unknown state", spared
	case 2:
		must(g.fake.KillSandbox(obs.Sandbox().ID))
		return "the end of the sandbox", nil
	case 3:
		for range 3 { // an earlier fault of this method may be left
			_, err := g.client.RemoveContainer(g.t.Context(), &runtimeapi.RemoveContainerRequest{
				ContainerId: newest.ID,
			})
			if status.Convert(err).Message() == "chaos" {
				continue
			}
			must(err)
			break
		}
		return "the removal of a container", spared
	case 4:
		_, err := g.client.RemovePodSandbox(g.t.Context(), &runtimeapi.RemovePodSandboxRequest{
			PodSandboxId: obs.Sandbox().ID,
		})
		must(err)
		return "the removal of the sandbox", nil
	}
	methods := []string{"CreateContainer", "StartContainer", "StopContainer", "RemoveContainer", "RunPodSandbox",
		"PodSandboxStatus", "StopPodSandbox"}
	method := methods[r.IntN(len(methods))]
	fail := []func(string, int, error){g.fake.Fail, g.fake.FailAfter}[r.IntN(2)]
	fail(method, 1+r.IntN(2), status.Error([]codes.Code{codes.Unknown, codes.Unavailable}[r.IntN(2)], "chaos"))
	must(g.fake.Exit(newest.ID, 1))
	if method == "PodSandboxStatus" {
		return "failures of " + method, nil
	}
	return "failures of " + method, spared
}

// heal syncs until the pod is whole.
func (g *fixture) heal(pod *v1.Pod, seed uint64, what string) {
	g.t.Helper()
	var last error
	for range 60 {
		obs, err := g.GetPod(g.t.Context(), pod.UID, nil)
		if err != nil {
			continue // a fault that hit the observation; the agent reads it again, too
		}
		res := g.SyncPod(g.t.Context(), SyncInput{Pod: pod, Observed: obs})
		if last = res.Err; last != nil || res.Changed {
			continue
		}
		all := allContainers(pod)
		if obs.Sandbox() == nil || slices.ContainsFunc(all, func(c v1.Container) bool {
			return !obs.Container(c.Name).Running()
		}) {
			continue
		}
		if ready := slices.DeleteFunc(slices.Clone(obs.Sandboxes), func(s *observed.Sandbox) bool {
			return !s.Ready
		}); len(ready) != 1 || len(obs.Sandboxes) > 4 {
			g.t.Fatalf("seed %d, after %s: %d sandboxes, %d of them ready; want one, at most 4",
				seed, what, len(obs.Sandboxes), len(ready))
		}
		for _, c := range all {
			attempts := obs.Attempts(c.Name)
			running := slices.DeleteFunc(slices.Clone(attempts), func(o *observed.Container) bool {
				return !o.Running()
			})
			if len(running) != 1 || len(attempts) > 4 {
				g.t.Fatalf("seed %d, after %s: %d attempts at %s, %d of them run; want one, at most 4",
					seed, what, len(attempts), c.Name, len(running))
			}
		}
		return
	}
	g.t.Fatalf("seed %d: last sync after %s: error %v, want the pod running without an error", seed, what, last)
}
