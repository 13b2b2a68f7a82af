// Package termination lets callers wait until nothing of a pod runs any more.
package termination

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Reason and message of the event of a pod that does not end within Timeout. They are the kubelet's.
const (
	ReasonExceededGrace  = "ExceededGracePeriod"
	MessageExceededGrace = "Container runtime did not kill the pod within specified grace period."
)

// minTimeout is the shortest result of Timeout.
const minTimeout = 10 * time.Second

// Timeout returns how long to wait for the end of a pod: one and a half times its grace period, and at least
// minTimeout. grace, in seconds, overrides the pod's own when it is not nil.
func Timeout(pod *v1.Pod, grace *int64) time.Duration {
	if grace == nil {
		grace = pod.Spec.TerminationGracePeriodSeconds
	}
	if grace == nil {
		return minTimeout
	}
	return max(time.Duration(*grace)*time.Second*3/2, minTimeout)
}

// Waiters wakes callers when pods have ended. The zero value is ready to use. Its methods may be called from any
// goroutine.
type Waiters struct {
	mu      sync.Mutex
	waiting map[types.UID]chan struct{}
	// ended are the pods that have ended and are not forgotten yet, so that a caller who comes late does not wait.
	ended map[types.UID]bool
}

// Wait returns a channel that is closed when the pod has ended. It is closed already if the pod has ended before.
func (w *Waiters) Wait(uid types.UID) <-chan struct{} {
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

// Ended wakes the callers that wait for a pod, and remembers that it has ended.
func (w *Waiters) Ended(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wake(uid)
	if w.ended == nil {
		w.ended = map[types.UID]bool{}
	}
	w.ended[uid] = true
}

// Started records that a pod runs, perhaps again: a manifest may come back.
func (w *Waiters) Started(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.ended, uid)
}

// Forget wakes the callers that wait for a pod, and drops what is known of it.
func (w *Waiters) Forget(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wake(uid)
	delete(w.ended, uid)
}

// wake is called under the lock.
func (w *Waiters) wake(uid types.UID) {
	if done := w.waiting[uid]; done != nil {
		close(done)
		delete(w.waiting, uid)
	}
}

// Within waits until done is closed, for limit at most, and reports whether it was.
func Within(ctx context.Context, done <-chan struct{}, limit time.Duration) bool {
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
