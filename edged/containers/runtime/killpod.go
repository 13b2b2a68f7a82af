package runtime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/restart"
)

// KillPod stops all containers of a pod within the grace period, then its sandboxes, also those that died by
// themselves: their addresses and host ports are still held. Containers are stopped side by side, sidecars after them,
// the last one first, each in what is left of the grace period; when that is over, all at once. preStop hooks run from
// the beginning on, also those of sidecars.
//
// pod is nil for an orphan, whose containers carry their grace in annotations. grace, in seconds, overrides both and is
// 1 at the least. Nothing is removed. It may be called again at any time.
func (r *Runtime) KillPod(ctx context.Context, uid types.UID, pod *v1.Pod, obs *observed.Pod, grace *int64) error {
	var wg sync.WaitGroup
	kills := r.killsOf(ctx, uid, pod, obs, grace)
	errs := make([]error, len(kills))
	for i, k := range kills {
		wg.Go(func() {
			err := r.killContainer(ctx, k.kill)
			if err != nil {
				errs[i] = fmt.Errorf("stop container %s of pod %s: %w", k.container.Name, uid, err)
			}
			k.end.finish(err)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, s := range obs.Sandboxes {
		if err := r.stopSandbox(ctx, s.ID); err != nil {
			errs = append(errs, fmt.Errorf("pod %s: %w", uid, err))
		}
	}
	return errors.Join(errs...)
}

// ending is the end of one container, for which others wait.
type ending struct {
	over chan struct{}
	err  error
}

func (e *ending) finish(err error) {
	e.err = err
	close(e.over)
}

// orderedKill is a kill whose end others may wait for.
type orderedKill struct {
	kill
	end *ending
}

// killsOf makes the list of a pod's containers to stop, and says who waits for whom.
func (r *Runtime) killsOf(
	ctx context.Context, uid types.UID, pod *v1.Pod, obs *observed.Pod, grace *int64,
) []orderedKill {
	var kills []orderedKill
	hostNetwork := pod != nil && pod.Spec.HostNetwork
	var ips []string
	if box := obs.Sandbox(); box != nil {
		ips, hostNetwork = box.IPs, box.HostNetwork || hostNetwork
	}
	for _, c := range obs.Containers {
		if c.Exited() {
			continue
		}
		k := kill{
			uid:         uid,
			pod:         pod,
			container:   c,
			ips:         ips,
			hostNetwork: hostNetwork,
			message:     "Stopping container " + c.Name,
			grace:       max(graceOf(pod, grace), minGrace),
		}
		if pod != nil {
			k.spec = containerSpec(pod, c.Name)
		} else {
			spec, own := r.orphan(ctx, c)
			k.spec = spec
			if grace == nil {
				k.grace = own
			}
		}
		kills = append(kills, orderedKill{k, &ending{over: make(chan struct{})}})
	}
	if pod != nil {
		setStopOrder(pod, kills)
	}
	return kills
}

// setStopOrder makes the stop of each sidecar wait for the containers, the init containers, and the sidecars after it.
func setStopOrder(pod *v1.Pod, kills []orderedKill) {
	first := len(pod.Spec.InitContainers) // rank: a sidecar waits for all of a higher rank
	rank := func(name string) int {
		for i := range pod.Spec.InitContainers {
			if c := &pod.Spec.InitContainers[i]; c.Name == name && restart.IsSidecar(c) {
				return i
			}
		}
		if slices.ContainsFunc(pod.Spec.EphemeralContainers, func(e v1.EphemeralContainer) bool {
			return e.Name == name
		}) {
			return -1 // nobody waits for it, and it waits for nobody
		}
		return first
	}
	for i := range kills {
		mine := rank(kills[i].container.Name)
		if mine < 0 || mine == first {
			continue
		}
		var before []orderedKill
		for _, k := range kills {
			if rank(k.container.Name) > mine {
				before = append(before, k)
			}
		}
		kills[i].turn = func(ctx context.Context) error { return waitFor(ctx, before) }
	}
}

// waitFor waits until containers have ended.
func waitFor(ctx context.Context, before []orderedKill) error {
	for _, k := range before {
		select {
		case <-k.end.over:
			if k.end.err != nil {
				return fmt.Errorf("container %s, which has to stop first, could not be stopped", k.container.Name)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
