package edged

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// This file is how callers wait until nothing of a pod runs any more.

const (
	// reasonExceededGrace and messageExceededGrace are said of a pod that does not end in time. They are the kubelet's.
	reasonExceededGrace  = "ExceededGracePeriod"
	messageExceededGrace = "Container runtime did not kill the pod within specified grace period."
	// minKillTimeout is the shortest time that a pod has to end, and its runtime to kill it.
	minKillTimeout = 10 * time.Second
)

// killTimeout returns how long the end of a pod is waited for: one and a half times its grace period. grace, in seconds,
// overrides the pod's own when not nil.
func killTimeout(pod *v1.Pod, grace *int64) time.Duration {
	if grace == nil {
		grace = pod.Spec.TerminationGracePeriodSeconds
	}
	if grace == nil {
		return minKillTimeout
	}
	return max(time.Duration(*grace)*time.Second*3/2, minKillTimeout)
}

// terminationWaiters tells callers that pods have ended. The zero value is ready. Its methods may be called from any
// goroutine.
type terminationWaiters struct {
	mu      sync.Mutex
	waiting map[types.UID]chan struct{}
	// ended are the pods that have ended and that somebody still knows, so that who comes late does not wait for ever.
	ended map[types.UID]bool
}

// wait returns a channel that is closed when the pod has ended; at once if it has.
func (w *terminationWaiters) wait(uid types.UID) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	done := w.waiting[uid]
	switch {
	case w.ended[uid]:
		done = make(chan struct{})
		close(done)
	case done == nil:
		done = make(chan struct{})
		if w.waiting == nil {
			w.waiting = map[types.UID]chan struct{}{}
		}
		w.waiting[uid] = done
	}
	return done
}

// hasEnded wakes those who wait for a pod, and remembers that it has ended.
func (w *terminationWaiters) hasEnded(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wake(uid)
	if w.ended == nil {
		w.ended = map[types.UID]bool{}
	}
	w.ended[uid] = true
}

// started notes that a pod runs, perhaps again: a manifest may come back.
func (w *terminationWaiters) started(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.ended, uid)
}

// forget wakes those who wait for a pod of which nobody knows anything any more.
func (w *terminationWaiters) forget(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wake(uid)
	delete(w.ended, uid)
}

// wake is called under the lock.
func (w *terminationWaiters) wake(uid types.UID) {
	if done := w.waiting[uid]; done != nil {
		close(done)
		delete(w.waiting, uid)
	}
}

// waitEnded returns a channel that is closed when nothing of a pod runs any more. A pod without a worker does not run.
func (e *Edged) waitEnded(uid types.UID) <-chan struct{} {
	done := e.terminations.wait(uid)
	if !e.pool.Knows(uid) {
		e.terminations.forget(uid)
	}
	return done
}

// within waits for a channel to be closed, no longer than a time, and reports whether it was.
func within(ctx context.Context, done <-chan struct{}, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}
