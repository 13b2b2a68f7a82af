package runtime

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

// restartAllContainers carries out the rule RestartAllContainers: all containers but the ephemeral ones are stopped
// without hooks and removed, the one whose end asked for it last, so that a start over which was cut off is taken up
// again. The sandbox and the volumes stay. The newest log of each container stays, too: it is what is shown as the
// previous one, and from its name the count of restarts goes on.
func (r *Runtime) restartAllContainers(ctx context.Context, pod *v1.Pod, obs *observed.Pod, res *SyncResult) {
	res.Changed = true
	cause := trigger(pod, obs)
	// The next attempt at it waits as long as after any other crash.
	r.backoff.waitFor(pod.UID, cause.Name, cause.Hash, cause)
	r.backoff.keepWait(pod.UID, cause.Name, cause.Hash)
	var wg sync.WaitGroup
	errs := make([]error, len(obs.Containers))
	for i, c := range obs.Containers {
		spec := containerSpec(pod, c.Name)
		if ephemeral(pod, c.Name) || c.Exited() || spec == nil {
			continue
		}
		wg.Go(func() {
			if c.Running() {
				r.opts.Recorder.ContainerEventf(pod, spec, v1.EventTypeNormal, eventKilling, "killing")
			}
			errs[i] = r.stopContainer(ctx, c.ID, minGraceLeft)
		})
	}
	wg.Wait()
	if res.Err = errors.Join(errs...); res.Err != nil {
		return
	}
	for _, c := range obs.Containers {
		if c != cause && !ephemeral(pod, c.Name) {
			res.Err = errors.Join(res.Err, r.discard(ctx, obs, c))
		}
	}
	if res.Err == nil {
		res.Err = r.discard(ctx, obs, cause)
	}
	res.More = res.Err == nil
}

func ephemeral(pod *v1.Pod, name string) bool {
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == name {
			return true
		}
	}
	return false
}

// discard removes a container; the log of the newest attempt stays, and those of earlier ones go.
func (r *Runtime) discard(ctx context.Context, obs *observed.Pod, c *observed.Container) error {
	newest := obs.Container(c.Name)
	kept := *c
	if c == newest {
		kept.LogPath = "" // removeContainer removes only the log that it is given
		dir := filepath.Join(r.podLogDir(obs.Namespace, obs.Name, string(obs.UID)), c.Name)
		err := removeInLogs(dir, func(name string) bool {
			number, _, found := strings.Cut(name, ".log")
			n, err := strconv.ParseUint(number, 10, 31)
			return found && err == nil && n < uint64(c.Attempt)
		})
		if err != nil {
			klog.V(2).InfoS("Old logs not removed", "dir", dir, "err", err)
		}
	}
	return r.removeContainer(ctx, obs, &kept)
}
