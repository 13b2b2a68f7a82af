package edged

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/cri"
	"github.com/edgecore-io/edgecore/edged/deadline"
	"github.com/edgecore-io/edgecore/edged/events"
	"github.com/edgecore-io/edgecore/edged/observed"
	"github.com/edgecore-io/edgecore/edged/podworker"
	"github.com/edgecore-io/edgecore/edged/runtime"
	"github.com/edgecore-io/edgecore/edged/source"
	"github.com/edgecore-io/edgecore/edged/status"
)

// The methods in this file are what the pod workers do; see the states in package podworker.

// runtimeRetry is how soon a pod is tried again that met a runtime which is down. The news that
// it is back wakes all pods, so this is a safety net.
const runtimeRetry = 10 * time.Second

// Sync implements podworker.Syncer.
func (e *Edged) Sync(ctx context.Context, pod *v1.Pod) podworker.Outcome {
	if status.Terminal(e.statuses.Phase(pod.UID)) {
		return podworker.Outcome{Finished: true} // what has ended stays ended, also over a reboot
	}
	if e.stopper.Why(pod.UID) != nil {
		return podworker.Outcome{Finished: true} // the node ends it
	}
	if e.gate.Closed() {
		return podworker.Outcome{}
	}
	e.terminations.Started(pod.UID)
	ctx, cancel := e.gate.Within(ctx)
	defer cancel()
	obs, err := e.observe(ctx, pod.UID)
	if err != nil {
		e.sayFailed(ctx, pod, events.FailedSync, "error determining status", err)
		return e.syncFailed(pod, fmt.Errorf("read state of pod %s: %w", klog.KObj(pod), err))
	}
	pod = e.allocations.Allocate(pod)
	if e.podStatus.Update(pod, obs, nil) {
		return podworker.Outcome{Finished: true}
	}
	deadline, over := e.deadline(pod)
	if over {
		return podworker.Outcome{Finished: true}
	}
	if !deadline.IsZero() { // no pull and no hook goes on after it
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	out := e.syncOnce(ctx, pod, obs)
	out.By = deadline
	return out
}

// syncOnce brings a pod that is to run one step nearer to its spec.
func (e *Edged) syncOnce(ctx context.Context, pod *v1.Pod, obs *observed.Pod) podworker.Outcome {
	if err := e.runtimeStatus.NetworkFor(pod, obs); err != nil {
		e.recorder.Eventf(pod, v1.EventTypeWarning, "NetworkNotReady", "%v", err)
		return e.syncFailed(pod, err)
	}
	secrets, err := e.prepare(ctx, pod)
	if err != nil {
		return e.syncFailed(pod, err)
	}
	probes, sizeErr := e.allocations.Resize(ctx, pod, obs, e.podStatus.Probe(pod, obs))
	result := e.runtime.SyncPod(ctx, runtime.Wish{Pod: pod, Observed: obs, PullSecrets: secrets, Probes: probes})
	if result.Changed || result.Err != nil {
		if fresh, err := e.pleg.Refresh(ctx, pod.UID); err == nil {
			result.More = result.More || endedMeanwhile(obs, fresh)
			obs = fresh
		}
	}
	result.Err = errors.Join(result.Err, sizeErr, e.allocations.Finish(ctx, pod, obs, sizeErr))
	finished := e.podStatus.Update(pod, obs, &result)
	if result.Err != nil {
		out := e.syncFailed(pod, result.Err)
		if out.RetryAt.IsZero() {
			out.RetryAt = result.RetryAt
		}
		return out
	}
	if result.More {
		result.RetryAt = time.Now()
	}
	return podworker.Outcome{Finished: finished, RetryAt: result.RetryAt}
}

// endedMeanwhile tells whether something of a pod has ended during a sync, as the look after it shows: nobody tells of
// that again. It is pure.
func endedMeanwhile(before, after *observed.Pod) bool {
	if box, old := after.Sandbox(), before.Sandbox(); box != nil && !box.Ready && (old == nil || old.ID != box.ID || old.Ready) {
		return true
	}
	return slices.ContainsFunc(after.Containers, func(c *observed.Container) bool {
		return c.Exited() && after.Container(c.Name) == c && !slices.ContainsFunc(before.Containers, func(b *observed.Container) bool { return b.ID == c.ID && b.Exited() })
	})
}

// syncFailed makes an outcome of an error. A runtime that is down is not the pod's fault: the
// agent's own condition says so, once.
func (e *Edged) syncFailed(pod *v1.Pod, err error) podworker.Outcome {
	if cri.IsDown(err) {
		return podworker.Outcome{Err: err, RetryAt: time.Now().Add(runtimeRetry)}
	}
	if !errors.Is(err, context.Canceled) {
		klog.V(2).InfoS("Pod not in sync yet", "pod", klog.KObj(pod), "err", err)
	}
	return podworker.Outcome{Err: err}
}

// sayFailed records that something failed which the kubelet has an event for. pod may be nil, and so may err. A runtime
// that is down and a call that was cut short are no failures of the pod.
func (e *Edged) sayFailed(ctx context.Context, pod *v1.Pod, reason, what string, err error) {
	if pod != nil && err != nil && ctx.Err() == nil && !cri.IsDown(err) {
		e.recorder.Eventf(pod, v1.EventTypeWarning, reason, "%s: %v", what, err)
	}
}

// observe returns what the runtime has of a pod, from the cache where that is whole.
func (e *Edged) observe(ctx context.Context, uid types.UID) (*observed.Pod, error) {
	obs := e.pleg.Get(uid)
	switch {
	case obs != nil && obs.Detailed:
		return obs, nil
	case obs == nil && e.pleg.Healthy() == nil:
		// The runtime's lists were read, and the pod is not in them: there is no need to ask again.
		return &observed.Pod{UID: uid, Detailed: true, At: time.Now()}, nil
	}
	return e.pleg.Refresh(ctx, uid)
}

// prepare makes what the pod needs before its sandbox: folders, cgroup, volumes, pull secrets.
func (e *Edged) prepare(ctx context.Context, pod *v1.Pod) ([]v1.Secret, error) {
	if err := os.MkdirAll(e.podDir(pod.UID), 0o750); err != nil {
		return nil, fmt.Errorf("pod folder: %w", err)
	}
	if err := e.allocations.EnsureCgroup(pod); err != nil {
		e.recorder.Eventf(pod, v1.EventTypeWarning, events.FailedCreatePodContainer, "unable to ensure pod container exists: %v", err)
		return nil, fmt.Errorf("cgroup of pod %s: %w", klog.KObj(pod), err)
	}
	volumes, err := e.volumes.Setup(ctx, pod)
	if err != nil {
		if ctx.Err() == nil {
			e.recorder.Eventf(pod, v1.EventTypeWarning, events.FailedMountVolume, "%v", err)
		}
		return nil, err
	}
	e.inputs.SetVolumes(pod.UID, volumes)
	e.limits.Added(pod)
	return e.pullSecrets(ctx, pod), nil
}

// pullSecrets returns the image pull secrets that exist; a missing one is reported, and the pull is tried without it.
func (e *Edged) pullSecrets(ctx context.Context, pod *v1.Pod) []v1.Secret {
	var secrets []v1.Secret
	for _, ref := range pod.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		secret, err := e.meta.Secret(ctx, pod.Namespace, ref.Name)
		if err != nil {
			if apierrors.IsNotFound(err) {
				e.recorder.Eventf(pod, v1.EventTypeWarning, events.FailedToRetrieveImagePullSecret,
					"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", ref.Name)
			} else {
				klog.ErrorS(err, "Image pull secret could not be read", "pod", klog.KObj(pod), "secret", ref.Name)
			}
			continue
		}
		secrets = append(secrets, *secret)
	}
	return secrets
}

// Terminate implements podworker.Syncer.
func (e *Edged) Terminate(ctx context.Context, end podworker.End) error {
	if why := e.stopper.Why(end.UID); why != nil && why.Grace != nil && (end.Grace == nil || *why.Grace < *end.Grace) {
		end.Grace = why.Grace
	}
	obs, err := e.pleg.Refresh(ctx, end.UID)
	if err != nil {
		e.sayFailed(ctx, end.Pod, events.FailedSync, "error determining status", err)
		return fmt.Errorf("read state of pod %s: %w", end.UID, err)
	}
	e.prober.End(end.UID)
	if end.Pod != nil {
		e.podStatus.Update(end.Pod, obs, nil)
	}
	if !obs.Alive() {
		return e.releaseSandboxes(ctx, end.Pod, obs)
	}
	if end.Pod == nil {
		klog.InfoS("Stopping a pod that nobody wants", "pod", klog.KRef(obs.Namespace, obs.Name), "podUID", end.UID)
	}
	killErr := e.runtime.KillPod(ctx, end.UID, end.Pod, obs, end.Grace)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	e.sayFailed(ctx, end.Pod, events.FailedKillPod, "error killing pod", killErr)
	if obs, err = e.pleg.Refresh(ctx, end.UID); err != nil {
		return errors.Join(killErr, err)
	}
	if end.Pod != nil {
		e.podStatus.Update(end.Pod, obs, nil)
	}
	if obs.ContainersAlive() {
		return errors.Join(killErr, fmt.Errorf("pod %s: containers still run", end.UID))
	}
	return killErr
}

// releaseSandboxes gives back what the sandboxes of a pod hold of which nothing runs. Those of a pod that was reported
// as ended gave it back then, and those of an orphan do when they are removed.
func (e *Edged) releaseSandboxes(ctx context.Context, pod *v1.Pod, obs *observed.Pod) error {
	if pod == nil || status.Terminal(e.statuses.Phase(pod.UID)) {
		return nil
	}
	err := e.runtime.ReleaseSandboxes(ctx, pod, obs)
	e.sayFailed(ctx, pod, events.FailedKillPod, "error killing pod", err)
	return err
}

// Terminated implements podworker.Syncer.
func (e *Edged) Terminated(ctx context.Context, end podworker.End) error {
	gone := end.Removed || end.Deleted
	e.prober.Forget(end.UID)
	if end.Pod != nil {
		e.podStatus.Terminated(end.Pod, e.pleg.Get(end.UID))
	}
	if err := e.volumes.Teardown(ctx, end.UID); err != nil {
		return fmt.Errorf("volumes of pod %s: %w", end.UID, err)
	}
	e.inputs.Forget(end.UID)
	e.deadlines.Forget(end.UID)
	if gone {
		obs := e.pleg.Get(end.UID)
		if obs == nil {
			obs = &observed.Pod{UID: end.UID} // the runtime may never have had it; its log folder may be there
		}
		if err := e.runtime.RemovePod(ctx, obs); err != nil {
			return fmt.Errorf("remove containers of pod %s: %w", end.UID, err)
		}
		// A pod of the same UID, of a manifest that comes back, finds nothing of this one.
		if _, err := e.pleg.Refresh(ctx, end.UID); err != nil {
			return fmt.Errorf("state of pod %s: %w", end.UID, err)
		}
	}
	if err := e.cgroups.RemovePod(end.UID); err != nil {
		return fmt.Errorf("cgroup of pod %s: %w", end.UID, err)
	}
	if err := e.userns.Release(end.UID); err != nil {
		return fmt.Errorf("pod %s: %w", end.UID, err)
	}
	e.devices.Free(end.UID)
	e.garbage.ImagesUsed(end.Pod)
	if end.Pod != nil {
		e.podStatus.Conclude(end.Pod)
	}
	e.ended(end.UID)
	if gone {
		if err := e.volumes.RemovePodDir(end.UID); err != nil {
			return fmt.Errorf("folder of pod %s: %w", end.UID, err)
		}
	}
	return e.reportEnd(ctx, end)
}

// reportEnd tells the store that nothing is left of a pod.
func (e *Edged) reportEnd(ctx context.Context, end podworker.End) error {
	if w, ok := e.desired.Get(end.UID); ok && w.Removed && end.Pod == nil {
		end.Pod = w.Pod // it never had a worker before its end: it was rejected, or waited to start
	}
	if end.Pod == nil {
		e.statuses.Delete(end.UID) // of a pod that went while the agent was not there; one that comes again begins anew
		return nil
	}
	if end.Deleted && !end.Removed {
		// Whoever deleted the pod waits for this, and removes the object then.
		if err := e.reporter.Flush(ctx, end.UID); err != nil {
			return err
		}
		return e.meta.ReportDeleted(ctx, end.Pod)
	}
	if end.Removed {
		e.statuses.Delete(end.UID)
		e.reporter.Drop(end.UID)
		e.allocations.Forget(end.UID)
		if source.IsStatic(end.Pod) {
			return e.meta.ForgetStatus(ctx, end.Pod)
		}
	}
	return nil
}

// podDir is the pod's own folder, in the kubelet's place.
func (e *Edged) podDir(uid types.UID) string {
	return filepath.Join(e.opts.RootDir, "pods", string(uid))
}

// deadline returns when a pod's time is over; zero when it may run for ever. over reports whether it is; then the pod
// was stopped.
func (e *Edged) deadline(pod *v1.Pod) (at time.Time, over bool) {
	before, _ := e.statuses.Get(pod.UID)
	var start time.Time
	if before.StartTime != nil {
		start = before.StartTime.Time
	}
	at = e.deadlines.Of(pod, start, e.podDir(pod.UID))
	if at.IsZero() || time.Until(at) > 0 {
		return at, false
	}
	if e.desired.Stop(pod.UID, &status.Stopped{Reason: deadline.Reason, Message: deadline.Message, Unready: true}) {
		e.recorder.Eventf(pod, v1.EventTypeNormal, deadline.Reason, "%s", deadline.Message)
	}
	return at, true
}
