package podworker

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// phase is where a pod stands; see the package comment.
type phase int

const (
	syncing phase = iota
	terminating
	terminated
	done
)

// pendingUpdate merges all updates since the worker's last step.
type pendingUpdate struct {
	pod        *v1.Pod
	removed    bool
	stopped    bool
	grace      *int64
	startAfter types.UID
	changed    bool
}

type worker struct {
	uid  types.UID
	pool *Pool
	wake notify.Signal
	// settled is what the newest sync said, of the worker's goroutine alone.
	settled bool

	mu       sync.Mutex
	pending  pendingUpdate
	phase    phase
	cancel   context.CancelFunc // of the call under way
	endGrace *int64             // that the Terminate under way was given; nil: the pod's own
	end      End                // what is being ended, from Terminating on
}

// enqueue folds something new in, interrupts a call that it makes pointless, and wakes the worker.
func (w *worker) enqueue(fold func(*pendingUpdate)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fold(&w.pending)
	if w.cancel != nil && w.interrupts() {
		w.cancel()
	}
	w.wake.Notify()
}

// interrupts reports whether the update ends the call under way: a sync of a pod that has to end, or a termination
// whose grace got shorter.
func (w *worker) interrupts() bool {
	switch w.phase {
	case syncing:
		return w.pending.mustEnd()
	case terminating:
		g := w.pending.deletionGrace()
		return g != nil && (w.endGrace == nil || *g < *w.endGrace)
	}
	return false
}

// mustEnd reports whether the pod has to end.
func (n *pendingUpdate) mustEnd() bool {
	return n.removed || n.stopped || n.pod == nil || n.pod.DeletionTimestamp != nil
}

// deletionGrace is the grace period, in seconds, that the updates ask for; nil is the pod's own.
func (n *pendingUpdate) deletionGrace() *int64 {
	g := n.grace
	if n.pod != nil && n.pod.DeletionTimestamp != nil && n.pod.DeletionGracePeriodSeconds != nil {
		if d := n.pod.DeletionGracePeriodSeconds; g == nil || *d < *g {
			g = d
		}
	}
	return g
}

// run is the goroutine of one pod.
func (w *worker) run() {
	var retryAt time.Time
	resync := w.pool.opts.Resync
	backoff := retry.NewBackoff(retryMin, retryMax)
	timer := time.NewTimer(resync) // a new worker is woken by its first update
	defer timer.Stop()
	for {
		woken := false
		select {
		case <-w.pool.ctx.Done():
			return
		case <-w.wake:
			woken = true
		case <-timer.C:
		}
		for {
			again, next, err := w.step()
			if w.pool.ctx.Err() != nil {
				return
			}
			if err != nil {
				retryAt = earlier(time.Now().Add(backoff.Next()), next)
				break
			}
			backoff.Reset()
			retryAt = next
			if !again {
				break
			}
		}
		if w.currentPhase() == done && w.pool.forget(w) {
			return
		}
		if woken || !w.settled {
			resync = w.pool.opts.Resync
		} else {
			resync = min(2*resync, maxSettled*w.pool.opts.Resync)
		}
		timer.Reset(untilNext(resync, retryAt))
	}
}

// untilNext is how long to sleep: to the asked time, at the longest a resync.
func untilNext(resync time.Duration, at time.Time) time.Duration {
	// Spread the safety net, so that pods that started together do not sync together for ever.
	d := resync + rand.N(resync/2)
	if !at.IsZero() {
		d = min(d, max(time.Until(at), 0))
	}
	return d
}

func (w *worker) currentPhase() phase {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.phase
}

// idleForGood reports whether a done worker may be forgotten: the pod is not desired, and there is no update.
func (w *worker) idleForGood() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.phase == done && w.end.Removed && !w.pending.changed
}

// step does one call to the syncer, or none. It returns whether to look again at once, and when
// the next step is due.
func (w *worker) step() (again bool, next time.Time, err error) {
	w.settled = false
	w.mu.Lock()
	n := w.pending
	w.pending.changed = false
	select {
	case <-w.wake: // said before the look above, so it is in it
	default:
	}
	w.mu.Unlock()

	switch w.currentPhase() {
	case syncing:
		return w.stepSync(n)
	case terminating:
		return w.stepTerminate(n)
	case terminated:
		return w.stepTerminated()
	case done:
		return w.stepDone(n), time.Time{}, nil
	}
	return false, time.Time{}, nil
}

func (w *worker) stepSync(n pendingUpdate) (bool, time.Time, error) {
	if n.mustEnd() {
		w.beginEnd(n, false)
		return true, time.Time{}, nil
	}
	if n.startAfter != "" && w.pool.Knows(n.startAfter) {
		return false, time.Time{}, nil // forget() of that pod wakes us
	}
	ctx := w.beginCall(nil)
	var out SyncResult
	err := call(w.uid, "sync", func() error {
		out = w.pool.syncer.Sync(ctx, n.pod)
		return out.Err
	})
	if w.endCall(ctx) {
		return true, time.Time{}, nil // what failed by the interruption is no failure
	}
	if err != nil && out.RetryAt.IsZero() {
		return false, out.By, err
	}
	if out.Finished {
		w.beginEnd(n, true)
		return true, time.Time{}, nil
	}
	w.settled = out.Settled
	return false, earlier(out.RetryAt, out.By), nil
}

// earlier returns the earlier of two times; a zero time means none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

// beginEnd moves the pod to Terminating. finished: it ended by itself and may still be wanted.
func (w *worker) beginEnd(n pendingUpdate, finished bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.phase = terminating
	w.end = End{UID: w.uid, Pod: n.pod, Grace: n.grace}
	w.end.update(n)
	if finished {
		klog.V(2).InfoS("Pod finished", "podUID", w.uid)
	}
}

// update takes over what the newest update says of the pod's end. The pod stays the one that is being stopped.
func (e *End) update(n pendingUpdate) {
	e.Removed = e.Removed || n.removed || n.pod == nil
	if n.pod != nil && n.pod.DeletionTimestamp != nil {
		e.Deleted, e.Pod = true, n.pod
	}
	if g := n.deletionGrace(); g != nil && (e.Grace == nil || *g < *e.Grace) {
		e.Grace = g
	}
}

func (w *worker) stepTerminate(n pendingUpdate) (bool, time.Time, error) {
	w.mu.Lock()
	w.end.update(n)
	end := w.end
	w.mu.Unlock()
	ctx := w.beginCall(end.Grace)
	err := call(w.uid, "terminate", func() error { return w.pool.syncer.Terminate(ctx, end) })
	if w.endCall(ctx) {
		return true, time.Time{}, nil // a shorter grace has come
	}
	if err != nil {
		klog.ErrorS(err, "Pod could not be stopped; trying again", "podUID", w.uid)
		return false, time.Time{}, err
	}
	w.setPhase(terminated)
	return true, time.Time{}, nil
}

func (w *worker) stepTerminated() (bool, time.Time, error) {
	w.mu.Lock()
	w.end.update(w.pending)
	end := w.end
	w.mu.Unlock()
	ctx := w.beginCall(nil)
	err := call(w.uid, "clean-up", func() error { return w.pool.syncer.Terminated(ctx, end) })
	w.endCall(ctx)
	if err != nil {
		klog.ErrorS(err, "Pod could not be cleaned up; trying again", "podUID", w.uid)
		return false, time.Time{}, err
	}
	w.setPhase(done)
	return true, time.Time{}, nil
}

// stepDone checks whether a pod that is done needs another step: a finished one was removed, or a removed one is
// desired again. It returns whether there is another step.
func (w *worker) stepDone(n pendingUpdate) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	wanted := n.pod != nil && !n.removed
	switch {
	case w.end.Removed && wanted: // also one that is being deleted: its end is to be reported
		w.phase, w.end, w.pending.grace, w.pending.stopped = syncing, End{}, nil, false
		return true
	case !w.end.Removed && n.removed, !w.end.Deleted && wanted && n.pod.DeletionTimestamp != nil:
		w.end.update(n)
		w.phase = terminated
		return true
	}
	return false
}

// beginCall makes the context of a call that an update may interrupt.
func (w *worker) beginCall(grace *int64) context.Context {
	ctx, cancel := context.WithCancel(w.pool.ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cancel, w.endGrace = cancel, grace
	if w.interrupts() {
		cancel()
	}
	return ctx
}

// endCall ends what beginCall began, and reports whether an update interrupted the call.
func (w *worker) endCall(ctx context.Context) (interrupted bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	interrupted = ctx.Err() != nil && w.pool.ctx.Err() == nil
	w.cancel()
	w.cancel = nil
	return interrupted
}

func (w *worker) setPhase(p phase) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.phase = p
}
