package podsync

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers/runtimelimit"
	"github.com/edgecore-io/edgecore/edged/pods/podworker"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
)

// Terminate implements podworker.Syncer.
func (s *Syncer) Terminate(ctx context.Context, end podworker.End) error {
	ctx = runtimelimit.WithOwner(ctx, runtimelimit.OwnerOf(end.UID, end.Pod))
	why := s.opts.Stopper.Why(end.UID)
	if why != nil { // the node needs what the pod holds
		ctx = runtimelimit.Urgent(ctx)
	}
	if why != nil && why.Grace != nil && (end.Grace == nil || *why.Grace < *end.Grace) {
		end.Grace = why.Grace
	}
	obs, err := s.opts.PLEG.Refresh(ctx, end.UID)
	if err != nil {
		s.recordFailure(ctx, end.Pod, events.FailedSync, "error determining status", err)
		return fmt.Errorf("read state of pod %s: %w", end.UID, err)
	}
	s.opts.Prober.StopLivenessAndStartup(end.UID)
	if end.Pod != nil {
		s.opts.PodStatus.Update(end.Pod, obs, nil)
	}
	if !obs.Alive() {
		return s.releaseSandboxes(ctx, end.Pod, obs)
	}
	if end.Pod == nil {
		klog.InfoS("Stopping a pod that is not desired", "pod", klog.KRef(obs.Namespace, obs.Name), "podUID", end.UID)
	}
	killErr := s.opts.Runtime.KillPod(ctx, end.UID, end.Pod, obs, end.Grace)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.recordFailure(ctx, end.Pod, events.FailedKillPod, "error killing pod", killErr)
	if obs, err = s.opts.PLEG.Refresh(ctx, end.UID); err != nil {
		return errors.Join(killErr, err)
	}
	if end.Pod != nil {
		s.opts.PodStatus.Update(end.Pod, obs, nil)
	}
	if obs.ContainersAlive() {
		return errors.Join(killErr, fmt.Errorf("pod %s: containers still run", end.UID))
	}
	return killErr
}

// releaseSandboxes releases the addresses and host ports of a pod's sandboxes once nothing of the pod runs. A pod
// that was reported as ended has released them before, and an orphan releases them when its sandboxes are removed.
func (s *Syncer) releaseSandboxes(ctx context.Context, pod *v1.Pod, obs *observed.Pod) error {
	if pod == nil || status.Terminal(s.opts.Statuses.Phase(pod.UID)) {
		return nil
	}
	err := s.opts.Runtime.ReleaseSandboxes(ctx, pod, obs)
	s.recordFailure(ctx, pod, events.FailedKillPod, "error killing pod", err)
	return err
}

// Terminated implements podworker.Syncer.
func (s *Syncer) Terminated(ctx context.Context, end podworker.End) error {
	ctx = runtimelimit.WithOwner(ctx, runtimelimit.OwnerOf(end.UID, end.Pod))
	s.opts.Prober.Forget(end.UID)
	if end.Pod != nil {
		s.opts.PodStatus.Terminated(end.Pod, s.opts.PLEG.Get(end.UID))
	}
	if err := s.opts.Volumes.Teardown(ctx, end.UID); err != nil {
		return fmt.Errorf("volumes of pod %s: %w", end.UID, err)
	}
	s.opts.Inputs.Forget(end.UID)
	s.opts.Deadlines.Forget(end.UID)
	if end.Removed {
		if err := s.removePod(ctx, end.UID); err != nil {
			return err
		}
	}
	if err := s.opts.RemoveCgroup(end.UID); err != nil {
		return fmt.Errorf("cgroup of pod %s: %w", end.UID, err)
	}
	if err := s.opts.ReleaseUserNS(end.UID); err != nil {
		return fmt.Errorf("pod %s: %w", end.UID, err)
	}
	s.opts.FreeDevices(end.UID)
	s.opts.ImagesUsed(end.Pod)
	if end.Pod != nil {
		s.opts.PodStatus.Conclude(end.Pod)
	}
	s.notifyEnded(end.UID)
	if end.Removed {
		if err := s.removeDir(end.UID); err != nil {
			return err
		}
	}
	if err := s.reportEnd(ctx, end); err != nil {
		return err
	}
	if end.Deleted && !end.Removed {
		s.removeLater(ctx, end)
	}
	return nil
}

// removeLater removes a pod whose end was reported. Nobody waits for that. A failure is not returned: the report would
// be sent again. The removal is tried again when the API server has removed the object, or the agent starts.
func (s *Syncer) removeLater(ctx context.Context, end podworker.End) {
	err := s.removePod(runtimelimit.Background(ctx), end.UID)
	if err == nil {
		err = s.removeDir(end.UID) // after the rest: edgecore end-pods knows the pods of this agent by their folders
	}
	if err != nil && ctx.Err() == nil {
		klog.ErrorS(err, "Ended pod not removed yet", "pod", klog.KObj(end.Pod), "podUID", end.UID)
	}
}

// removeDir removes the folder of a pod.
func (s *Syncer) removeDir(uid types.UID) error {
	if err := s.opts.Volumes.RemovePodDir(uid); err != nil {
		return fmt.Errorf("folder of pod %s: %w", uid, err)
	}
	return nil
}

// removePod removes a stopped pod from the runtime.
func (s *Syncer) removePod(ctx context.Context, uid types.UID) error {
	obs := s.opts.PLEG.Get(uid)
	if obs == nil {
		obs = &observed.Pod{UID: uid} // the runtime may never have had the pod, but it may have a log folder
	}
	if err := s.opts.Runtime.RemovePod(ctx, obs); err != nil {
		return fmt.Errorf("remove containers of pod %s: %w", uid, err)
	}
	// A manifest that is added again makes a pod of the same UID, which must not find this one's state.
	if _, err := s.opts.PLEG.Refresh(ctx, uid); err != nil {
		return fmt.Errorf("state of pod %s: %w", uid, err)
	}
	return nil
}

// reportEnd reports to the store that a pod has ended and holds nothing any more.
func (s *Syncer) reportEnd(ctx context.Context, end podworker.End) error {
	if w, ok := s.opts.Desired.Get(end.UID); ok && w.Removed && end.Pod == nil {
		end.Pod = w.Pod // it was rejected or waited to start, so it had no worker
	}
	if end.Pod == nil {
		// The pod was removed while the agent was stopped. A pod of the same UID starts afresh.
		s.opts.Statuses.Delete(end.UID)
		return nil
	}
	if end.Deleted && !end.Removed {
		// The API server removes the object after this report.
		if err := s.opts.Reports.Flush(ctx, end.UID); err != nil {
			return err
		}
		return s.opts.Store.ReportDeleted(ctx, end.Pod)
	}
	if end.Removed {
		s.opts.Statuses.Delete(end.UID)
		s.opts.Reports.Drop(end.UID)
		s.opts.Allocations.Forget(end.UID)
		// The status of a pod of the API server goes with its row, unless it was stored after that: the pod was
		// deleted by force, and ended later.
		return s.opts.Store.ForgetStatus(ctx, end.Pod)
	}
	return nil
}

// notifyEnded wakes callers that wait for the end of a pod, or for its resources.
func (s *Syncer) notifyEnded(uid types.UID) {
	s.opts.Waiters.Ended(uid)
	s.opts.Freed()
}
