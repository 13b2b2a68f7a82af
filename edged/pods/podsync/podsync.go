// Package podsync does the work of the pod workers: it reconciles pods with their specs, stops them, and releases what
// they held. See the states in package podworker.
package podsync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/containers/cri"
	"github.com/edgecore-io/edgecore/edged/containers/pleg"
	"github.com/edgecore-io/edgecore/edged/containers/runtime"
	"github.com/edgecore-io/edgecore/edged/containers/runtimelimit"
	"github.com/edgecore-io/edgecore/edged/pods/deadline"
	"github.com/edgecore-io/edgecore/edged/pods/podstop"
	"github.com/edgecore-io/edgecore/edged/pods/podworker"
	"github.com/edgecore-io/edgecore/edged/pods/shutdown"
	"github.com/edgecore-io/edgecore/edged/pods/termination"
	"github.com/edgecore-io/edgecore/edged/podstate/desired"
	"github.com/edgecore-io/edgecore/edged/podstate/events"
	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/edged/storage/volume"
)

// runtimeRetry is when a pod is synced again after the runtime did not answer. All pods are synced when the
// runtime is back, so this is a safety net.
const runtimeRetry = 10 * time.Second

// Runtime starts, stops and removes the containers of pods; see package runtime.
type Runtime interface {
	SyncPod(ctx context.Context, in runtime.SyncInput) runtime.SyncResult
	KillPod(ctx context.Context, uid types.UID, pod *v1.Pod, obs *observed.Pod, grace *int64) error
	ReleaseSandboxes(ctx context.Context, pod *v1.Pod, obs *observed.Pod) error
	RemovePod(ctx context.Context, obs *observed.Pod) error
}

// PodStatus makes the statuses of pods; see package podstatus.
type PodStatus interface {
	Update(pod *v1.Pod, obs *observed.Pod, result *runtime.SyncResult) (finished bool)
	Terminated(pod *v1.Pod, obs *observed.Pod)
	Conclude(pod *v1.Pod)
	Probe(pod *v1.Pod, obs *observed.Pod) observed.Probes
}

// Allocations are the resources that pods were given; see package allocation.
type Allocations interface {
	Allocate(pod *v1.Pod) *v1.Pod
	Unstored(uid types.UID) (admitted int, unstored bool)
	Stored(uid types.UID, admitted int)
	EnsureCgroup(pod *v1.Pod) error
	Resize(ctx context.Context, pod *v1.Pod, obs *observed.Pod, probes observed.Probes) (observed.Probes, error)
	Finish(ctx context.Context, pod *v1.Pod, obs *observed.Pod, failed error) error
	Forget(uid types.UID)
}

// Volumes are the volumes of pods; see package volume.
type Volumes interface {
	Setup(ctx context.Context, pod *v1.Pod) (volume.Volumes, error)
	Teardown(ctx context.Context, uid types.UID) error
	RemovePodDir(uid types.UID) error
}

// Inputs keeps what the containers of pods get; see package podinputs.
type Inputs interface {
	SetVolumes(uid types.UID, volumes volume.Volumes)
	Forget(uid types.UID)
}

// Prober probes containers; see package prober.
type Prober interface {
	StopLivenessAndStartup(uid types.UID)
	Forget(uid types.UID)
}

// Store has Secrets, and takes reports of pods that have ended; see package metaclient.
type Store interface {
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
	ReportDeleted(ctx context.Context, pod *v1.Pod) error
	ForgetStatus(ctx context.Context, pod *v1.Pod) error
}

// Reports are the statuses on their way to the store; see package statusreport.
type Reports interface {
	Flush(ctx context.Context, uid types.UID) error
	Drop(uid types.UID)
}

// Options are what a Syncer needs.
type Options struct {
	Desired     *desired.Pods
	Statuses    *status.Manager
	PodStatus   PodStatus
	Gate        *shutdown.Gate
	Waiters     *termination.Waiters
	Deadlines   *deadline.Tracker
	Recorder    *events.Recorder
	PLEG        pleg.Interface
	Runtime     Runtime
	Stopper     podstop.Interface
	Allocations Allocations
	Volumes     Volumes
	Inputs      Inputs
	Prober      Prober
	Store       Store
	Reports     Reports
	// PodDir returns the folder of a pod.
	PodDir func(types.UID) string
	// NetworkFor says why the network cannot serve a pod; nil if it can.
	NetworkFor func(pod *v1.Pod, obs *observed.Pod) error
	// Prepared is called when a pod's volumes are set up.
	Prepared func(*v1.Pod)
	// RemoveCgroup, ReleaseUserNS and FreeDevices release what a pod held, ImagesUsed the images of its containers.
	// ImagesUsed may be given nil.
	RemoveCgroup  func(types.UID) error
	ReleaseUserNS func(types.UID) error
	FreeDevices   func(types.UID)
	ImagesUsed    func(*v1.Pod)
	// Freed is called when nothing of a pod runs any more, so that others may have its resources.
	Freed func()
}

// Syncer implements podworker.Syncer. Its methods may be called from any goroutine, for one pod from one at a time.
type Syncer struct {
	opts Options
}

// New returns a Syncer.
func New(o Options) *Syncer { return &Syncer{opts: o} }

// Sync implements podworker.Syncer.
func (s *Syncer) Sync(ctx context.Context, pod *v1.Pod) podworker.SyncResult {
	if status.Terminal(s.opts.Statuses.Phase(pod.UID)) {
		return podworker.SyncResult{Finished: true} // an ended pod stays ended, also after a reboot
	}
	if s.opts.Stopper.Why(pod.UID) != nil {
		return podworker.SyncResult{Finished: true} // the node ends it
	}
	if s.opts.Gate.Closed() {
		return podworker.SyncResult{}
	}
	s.opts.Waiters.Started(pod.UID)
	ctx = runtimelimit.WithOwner(ctx, runtimelimit.OwnerOf(pod.UID, pod))
	ctx, cancel := s.opts.Gate.Within(ctx)
	defer cancel()
	obs, err := s.observe(ctx, pod.UID)
	if err != nil {
		s.recordFailure(ctx, pod, events.FailedSync, "error determining status", err)
		return failed(pod, fmt.Errorf("read state of pod %s: %w", klog.KObj(pod), err))
	}
	pod = s.opts.Allocations.Allocate(pod)
	admitted, unstored := s.opts.Allocations.Unstored(pod.UID)
	if s.opts.PodStatus.Update(pod, obs, nil) {
		return podworker.SyncResult{Finished: true}
	}
	var notStored error
	if unstored {
		if err := s.opts.Reports.Flush(ctx, pod.UID); err != nil {
			notStored = fmt.Errorf("store the resize of pod %s: %w", klog.KObj(pod), err)
		} else {
			s.opts.Allocations.Stored(pod.UID, admitted)
		}
	}
	deadline, over := s.deadline(pod)
	if over {
		return podworker.SyncResult{Finished: true}
	}
	if !deadline.IsZero() { // image pulls and hooks stop at the deadline
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	out := s.syncOnce(ctx, pod, obs, notStored)
	out.By = earlier(deadline, out.By)
	return out
}

// earlier returns the earlier of two times; a zero time means none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// syncOnce brings a pod one step nearer to its spec. notStored is why a resize must not be done yet: the pod runs on
// with what it has, and the sync is tried again.
func (s *Syncer) syncOnce(ctx context.Context, pod *v1.Pod, obs *observed.Pod, notStored error) podworker.SyncResult {
	if err := s.opts.NetworkFor(pod, obs); err != nil {
		s.opts.Recorder.Eventf(pod, v1.EventTypeWarning, "NetworkNotReady", "%v", err)
		return failed(pod, err)
	}
	secrets, volumes, err := s.prepare(ctx, pod)
	if err != nil {
		return failed(pod, err)
	}
	probes, sizeErr := s.opts.PodStatus.Probe(pod, obs), notStored
	if notStored == nil {
		probes, sizeErr = s.opts.Allocations.Resize(ctx, pod, obs, probes)
	}
	result := s.opts.Runtime.SyncPod(ctx, runtime.SyncInput{
		Pod:         pod,
		Observed:    obs,
		PullSecrets: secrets,
		Probes:      probes,
	})
	if result.Changed || result.Err != nil {
		if fresh, err := s.opts.PLEG.Refresh(ctx, pod.UID); err == nil {
			result.More = result.More || endedDuringSync(obs, fresh)
			obs = fresh
		}
	}
	result.Err = errors.Join(result.Err, sizeErr)
	if notStored == nil {
		result.Err = errors.Join(result.Err, s.opts.Allocations.Finish(ctx, pod, obs, sizeErr))
	}
	finished := s.opts.PodStatus.Update(pod, obs, &result)
	if result.Err != nil {
		out := failed(pod, result.Err)
		if out.RetryAt.IsZero() {
			out.RetryAt = result.RetryAt
		}
		return out
	}
	if result.More {
		result.RetryAt = time.Now()
	}
	return podworker.SyncResult{
		Finished: finished,
		RetryAt:  result.RetryAt,
		By:       volumes.RenewAt(),
		// Probes of pods on the node's network go to its address, which may change without a cloud to report it to.
		Settled: !result.Changed && result.RetryAt.IsZero() && !volumes.Polled() && !pod.Spec.HostNetwork,
	}
}

// endedDuringSync reports whether a sandbox or container of a pod has ended during a sync. before and after are
// what the runtime had then. The pod has to be synced again, because the PLEG reports no further change.
func endedDuringSync(before, after *observed.Pod) bool {
	sandbox, old := after.Sandbox(), before.Sandbox()
	if sandbox != nil && !sandbox.Ready && (old == nil || old.ID != sandbox.ID || old.Ready) {
		return true
	}
	return slices.ContainsFunc(after.Containers, func(c *observed.Container) bool {
		if !c.Exited() || after.Container(c.Name) != c {
			return false
		}
		return !slices.ContainsFunc(before.Containers, func(b *observed.Container) bool {
			return b.ID == c.ID && b.Exited()
		})
	})
}

// failed makes the outcome of a sync that failed. A runtime that is down is logged once, as a condition of the
// agent, and not for each pod.
func failed(pod *v1.Pod, err error) podworker.SyncResult {
	if cri.IsDown(err) {
		return podworker.SyncResult{Err: err, RetryAt: time.Now().Add(runtimeRetry)}
	}
	if !errors.Is(err, context.Canceled) {
		klog.V(2).InfoS("Pod not in sync yet", "pod", klog.KObj(pod), "err", err)
	}
	return podworker.SyncResult{Err: err}
}

// recordFailure records an event for a failure that the kubelet has an event for. pod and err may be nil. A
// runtime that is down and a call that was cancelled are not failures of the pod.
func (s *Syncer) recordFailure(ctx context.Context, pod *v1.Pod, reason, what string, err error) {
	if pod != nil && err != nil && ctx.Err() == nil && !cri.IsDown(err) {
		s.opts.Recorder.Eventf(pod, v1.EventTypeWarning, reason, "%s: %v", what, err)
	}
}

// deadline returns when the activeDeadlineSeconds of a pod end; zero if it has none. over reports whether they
// have ended, and then the pod was stopped.
func (s *Syncer) deadline(pod *v1.Pod) (at time.Time, over bool) {
	before, _ := s.opts.Statuses.Get(pod.UID)
	var start time.Time
	if before.StartTime != nil {
		start = before.StartTime.Time
	}
	at = s.opts.Deadlines.Of(pod, start, s.opts.PodDir(pod.UID))
	if at.IsZero() || time.Until(at) > 0 {
		return at, false
	}
	why := &status.Stopped{Reason: deadline.Reason, Message: deadline.Message, Unready: true}
	if s.opts.Desired.Stop(pod.UID, why) {
		s.opts.Recorder.Eventf(pod, v1.EventTypeNormal, deadline.Reason, "%s", deadline.Message)
	}
	return at, true
}
