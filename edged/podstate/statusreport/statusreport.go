// Package statusreport writes pod statuses to the store, from which metamanager sends them to the API server.
//
// It works beside the pod workers, so that no container waits for a disk. Of each pod it stores the newest status only.
// A status that the store refused is tried again until it is stored or a newer one replaces it.
package statusreport

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/podstate/source"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

const (
	// debounce is how long a changed status waits for the next change of the same pod. A pod passes several states
	// within a moment when it starts, and each write wears the flash. A pod that becomes ready or ends does not wait:
	// see reportedState.
	debounce = 200 * time.Millisecond
	// startDebounce is the same for a pod that starts as it should, until its first status is stored. Most pods run
	// within this time and are reported once. While other pods start or end, progressDebounce applies instead: reports
	// of pods that wait for their turn would delay those that start.
	startDebounce = 2 * time.Second
	// progressDebounce is the same for the progress of a pod that was reported as Pending, such as a ready sandbox or
	// an address, and of a pod that is being deleted, such as a container that has ended. So a pod that starts within
	// this time is reported twice at most, as Pending and as Running, and one that ends within it once.
	progressDebounce = 5 * time.Second
	// retryMin and retryMax bound the wait after the store refused a status.
	retryMin = time.Second
	retryMax = 30 * time.Second
	// atOnce is how many statuses are stored at a time: they share the store's commits.
	atOnce = 16
)

// Store keeps statuses; package metaclient implements it.
type Store interface {
	// ReportStatus keeps the status of a pod of the API server until the API server has it.
	ReportStatus(ctx context.Context, pod *v1.Pod, status v1.PodStatus) error
	// KeepStatus keeps the status of a static pod on this node. The API server knows only its mirror pod.
	KeepStatus(ctx context.Context, pod *v1.Pod, status v1.PodStatus) error
}

// Options are what a Reporter needs.
type Options struct {
	Store Store
	// Stored is called with the outcome of each write; nil is success. Calls may be concurrent.
	Stored func(error)
	// StaticStored is called after the status of a static pod was stored. It must not call the Reporter.
	StaticStored func()
	// Busy reports whether pods start or end. It must not call the Reporter.
	Busy func() bool
}

// Reporter stores changed statuses. Its methods may be called from any goroutine.
type Reporter struct {
	opts Options

	mu sync.Mutex
	// pending are the statuses that are not stored yet.
	pending map[types.UID]report
	// reported is the state of each pod in the status that was stored last.
	reported map[types.UID]reportedState
	changed  notify.Signal
	// urgent wakes Run for a status that does not wait.
	urgent notify.Signal
	// storing are the pods whose status is being stored. The channel is closed when that is done, so that two statuses
	// of a pod are stored in order.
	storing map[types.UID]chan struct{}
}

type report struct {
	pod    *v1.Pod
	status v1.PodStatus
	// since is when the oldest change that is not stored yet arrived.
	since time.Time
}

// reportedState is the part of a status that others wait for.
type reportedState struct {
	phase v1.PodPhase
	ready bool
	// containers describes the states of the containers of a Pending pod.
	containers string
}

func stateOf(status *v1.PodStatus) reportedState {
	s := reportedState{phase: status.Phase}
	for _, c := range status.Conditions {
		s.ready = s.ready || c.Type == v1.PodReady && c.Status == v1.ConditionTrue
	}
	if s.phase == v1.PodPending {
		s.containers = containersOf(status)
	}
	return s
}

// containersOf describes each container: its state, how often it restarted, and why it waits.
func containersOf(status *v1.PodStatus) string {
	var text strings.Builder
	for _, list := range [][]v1.ContainerStatus{
		status.InitContainerStatuses, status.ContainerStatuses, status.EphemeralContainerStatuses,
	} {
		for i := range list {
			c, reason := &list[i], ""
			if c.State.Waiting != nil {
				reason = c.State.Waiting.Reason
			}
			fmt.Fprintf(&text, "%s %d %t %t %s;", c.Name, c.RestartCount, c.State.Running != nil,
				c.State.Terminated != nil, reason)
		}
	}
	return text.String()
}

// New returns a Reporter that stores nothing before Run or one of the flush methods is called.
func New(o Options) *Reporter {
	return &Reporter{
		opts:     o,
		pending:  map[types.UID]report{},
		reported: map[types.UID]reportedState{},
		storing:  map[types.UID]chan struct{}{},
		changed:  notify.NewSignal(),
		urgent:   notify.NewSignal(),
	}
}

// PodStatus implements status.Reporter.
func (r *Reporter) PodStatus(pod *v1.Pod, status v1.PodStatus) {
	r.mu.Lock()
	since := time.Now()
	if before, ok := r.pending[pod.UID]; ok {
		since = before.since
	}
	r.pending[pod.UID] = report{pod: pod, status: status, since: since}
	urgent := r.isUrgent(pod.UID)
	r.mu.Unlock()
	if urgent {
		r.urgent.Notify()
	}
	r.changed.Notify()
}

// isUrgent reports whether others wait for the pending status of a pod. It is called under the lock.
func (r *Reporter) isUrgent(uid types.UID) bool {
	state := stateOf(new(r.pending[uid].status))
	return state != r.reported[uid] && state.phase != v1.PodPending && !r.isProgress(uid)
}

// lockPod waits until no status of the pod is being stored, and prevents others from storing one until unlock is
// called.
func (r *Reporter) lockPod(uid types.UID) (unlock func()) {
	mine := make(chan struct{})
	for {
		r.mu.Lock()
		other := r.storing[uid]
		if other == nil {
			r.storing[uid] = mine
		}
		r.mu.Unlock()
		if other == nil {
			break
		}
		<-other
	}
	return func() {
		r.mu.Lock()
		delete(r.storing, uid)
		r.mu.Unlock()
		close(mine)
	}
}

// isProgress reports whether the pending status of a pod shows nothing but progress of its start, or of its deletion:
// a Service need not know that a pod is not ready because its containers have ended. r.mu must be held.
func (r *Reporter) isProgress(uid types.UID) bool {
	rep := r.pending[uid]
	state := stateOf(&rep.status)
	if state.phase == v1.PodSucceeded || state.phase == v1.PodFailed {
		return false
	}
	same := state == r.reported[uid]
	if rep.pod.DeletionTimestamp != nil {
		return same || slices.ContainsFunc(rep.status.ContainerStatuses, hasEnded)
	}
	return same && state.phase == v1.PodPending
}

func hasEnded(c v1.ContainerStatus) bool { return c.State.Terminated != nil }

// isStart reports whether the pending status of a pod shows nothing but a start, and none was stored. r.mu must be
// held.
func (r *Reporter) isStart(uid types.UID) bool {
	rep := r.pending[uid]
	if r.reported[uid] != (reportedState{}) || rep.status.Phase != v1.PodPending || rep.pod.DeletionTimestamp != nil {
		return false
	}
	// Somebody who added an ephemeral container waits for it.
	return len(rep.status.EphemeralContainerStatuses) == 0 &&
		!slices.ContainsFunc(rep.status.InitContainerStatuses, isStuck) &&
		!slices.ContainsFunc(rep.status.ContainerStatuses, isStuck)
}

// isStuck reports whether a container waits for something other than its turn.
func isStuck(c v1.ContainerStatus) bool {
	return c.State.Waiting != nil && !status.IsStarting(c.State.Waiting)
}

// untilDue returns how long until the pending status of a pod is to be stored. r.mu must be held.
func (r *Reporter) untilDue(uid types.UID, now time.Time) time.Duration {
	wait := debounce
	switch isStart := r.isStart(uid); {
	case isStart && r.opts.Busy(), r.isProgress(uid):
		wait = progressDebounce
	case isStart:
		wait = startDebounce
	}
	return max(wait-now.Sub(r.pending[uid].since), 0)
}

// isDue returns a function that reports whether a pending status is to be stored now. r.mu must be held when that is
// called.
func (r *Reporter) isDue(now time.Time) func(types.UID) bool {
	return func(uid types.UID) bool {
		return r.untilDue(uid, now) == 0 || !r.isStart(uid) && !r.isProgress(uid) // it need not wake the disk again
	}
}

// nextDue returns how long until the next pending status is due; ok is false if none is pending.
func (r *Reporter) nextDue(now time.Time) (wait time.Duration, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid := range r.pending {
		left := r.untilDue(uid, now)
		if !ok || left < wait {
			wait, ok = left, true
		}
	}
	return wait, ok
}

// Drop forgets the pending status of a pod. A write under way has ended when Drop returns.
func (r *Reporter) Drop(uid types.UID) {
	defer r.lockPod(uid)()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pending, uid)
	delete(r.reported, uid)
}

// Run stores statuses until ctx ends. What is pending then stays so until FlushAll.
func (r *Reporter) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	backoff, failing := retry.NewBackoff(retryMin, retryMax), false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.changed:
		case <-r.urgent:
			if !failing {
				r.flush(ctx, r.isUrgent) // a status that is refused stays pending, and changed is notified
			}
			continue
		case <-timer.C:
			if failing = !r.flush(ctx, r.isDue(time.Now())); failing {
				timer.Reset(backoff.Next())
			} else {
				backoff.Reset()
			}
		}
		if wait, ok := r.nextDue(time.Now()); ok && !failing {
			timer.Reset(wait)
		}
	}
}

// FlushAll stores all pending statuses, and reports whether all were stored.
func (r *Reporter) FlushAll(ctx context.Context) bool {
	return r.flush(ctx, func(types.UID) bool { return true })
}

// flush stores the pending statuses of some pods, and reports whether all of these were stored. which is called under
// the lock.
func (r *Reporter) flush(ctx context.Context, which func(types.UID) bool) bool {
	r.mu.Lock()
	uids := make([]types.UID, 0, len(r.pending))
	for uid := range r.pending {
		if which(uid) {
			uids = append(uids, uid)
		}
	}
	r.mu.Unlock()
	var stores errgroup.Group
	stores.SetLimit(atOnce)
	for _, uid := range uids {
		stores.Go(func() error { return r.Flush(ctx, uid) })
	}
	return stores.Wait() == nil
}

// Flush stores the pending status of a pod, if there is one.
func (r *Reporter) Flush(ctx context.Context, uid types.UID) error {
	defer r.lockPod(uid)()
	r.mu.Lock()
	rep, ok := r.pending[uid]
	delete(r.pending, uid)
	r.mu.Unlock()
	if !ok {
		return nil
	}
	put := r.opts.Store.ReportStatus
	if source.IsStatic(rep.pod) {
		put = r.opts.Store.KeepStatus
	}
	err := put(ctx, rep.pod, rep.status)
	if ctx.Err() == nil {
		r.opts.Stored(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.reported[uid] = stateOf(&rep.status)
		if source.IsStatic(rep.pod) {
			r.opts.StaticStored()
		}
		return nil
	}
	klog.V(2).InfoS("Pod status not stored yet", "pod", klog.KObj(rep.pod), "err", err)
	if _, newer := r.pending[uid]; !newer {
		r.pending[uid] = rep
	}
	r.changed.Notify() // Run may have found nothing pending meanwhile
	return err
}
