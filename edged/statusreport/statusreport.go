// Package statusreport brings pod statuses to the store, from where they go to the API server.
//
// It works beside the pod workers, so that no container waits for a disk. Of each pod it stores the newest status only.
// A status that the store refused is tried again until it is stored or a newer one replaces it.
package statusreport

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/source"
	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

const (
	// debounce is how long a changed status waits for the next change of the same pod. A pod passes several states
	// within a moment when it starts, and each write wears the flash. A pod that becomes ready or ends does not wait:
	// see reportedState.
	debounce = 200 * time.Millisecond
	// retryMin and retryMax bound the wait after the store refused a status.
	retryMin = time.Second
	retryMax = 30 * time.Second
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
	// Stored is called with the outcome of each write; nil is success.
	Stored func(error)
	// StaticStored is called after the status of a static pod was stored. It must not call the Reporter.
	StaticStored func()
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
	// storing is held while a status is stored, so that of two statuses of a pod the newer is stored last.
	storing sync.Mutex
}

type report struct {
	pod    *v1.Pod
	status v1.PodStatus
}

// reportedState is the part of a status that others wait for.
type reportedState struct {
	phase v1.PodPhase
	ready bool
}

func stateOf(status *v1.PodStatus) reportedState {
	s := reportedState{phase: status.Phase}
	for _, c := range status.Conditions {
		s.ready = s.ready || c.Type == v1.PodReady && c.Status == v1.ConditionTrue
	}
	return s
}

// New returns a Reporter that stores nothing before Run or one of the flush methods is called.
func New(o Options) *Reporter {
	return &Reporter{
		opts:     o,
		pending:  map[types.UID]report{},
		reported: map[types.UID]reportedState{},
		changed:  notify.NewSignal(),
		urgent:   notify.NewSignal(),
	}
}

// PodStatus implements status.Reporter.
func (r *Reporter) PodStatus(pod *v1.Pod, status v1.PodStatus) {
	r.mu.Lock()
	r.pending[pod.UID] = report{pod: pod, status: status}
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
	return state != r.reported[uid] && state.phase != v1.PodPending
}

// Drop forgets the pending status of a pod. A write under way has ended when Drop returns.
func (r *Reporter) Drop(uid types.UID) {
	r.storing.Lock()
	defer r.storing.Unlock()
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
	backoff := retry.NewBackoff(retryMin, retryMax)
	failing, waiting := false, false
	wait := func(delay time.Duration) {
		timer.Reset(delay)
		waiting = true
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.changed:
			if !waiting {
				wait(debounce)
			}
			continue
		case <-r.urgent:
			if !failing {
				r.flush(ctx, r.isUrgent) // a status that is refused stays pending, and changed is notified
			}
			continue
		case <-timer.C:
			waiting = false
		}
		if failing = !r.FlushAll(ctx); failing {
			wait(backoff.Next())
		} else {
			backoff.Reset()
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
	ok := true
	for _, uid := range uids {
		ok = r.Flush(ctx, uid) == nil && ok
	}
	return ok
}

// Flush stores the pending status of a pod, if there is one.
func (r *Reporter) Flush(ctx context.Context, uid types.UID) error {
	r.storing.Lock()
	defer r.storing.Unlock()
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
