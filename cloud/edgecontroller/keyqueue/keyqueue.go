// Package keyqueue holds the keys of pods or Nodes that something has to be done about, and has it done until it
// succeeds.
package keyqueue

import (
	"context"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

const (
	keyWorkers = 4
	// Timeout is the timeout of one sync.
	Timeout = 20 * time.Second
	// FailureLogged is the failure of a key that is logged: after some 6 s.
	FailureLogged = 5
	// refusedRetry is how long a key waits after the API server has refused its sync, unless its object changes.
	refusedRetry = time.Hour
)

// Queue holds the keys of pods or nodes until their sync succeeds.
type Queue struct {
	kind string // of the objects, for the log
	// Keys are those that wait.
	Keys           workqueue.TypedRateLimitingInterface[string]
	sync           func(ctx context.Context, key string) error
	failureMessage string
	// Remedy, if set, says what to do if the API server refuses a sync. A lasting refusal is logged once, and not
	// retried until the object changes or refusedRetry has passed.
	Remedy        string
	refusalLogged atomic.Bool
}

// New makes a queue for objects of a kind; told is the log message if sync keeps failing.
func New(kind string, sync func(ctx context.Context, key string) error, told string) Queue {
	limit := workqueue.NewTypedItemExponentialFailureRateLimiter[string](200*time.Millisecond, 5*time.Minute)
	return Queue{kind: kind, Keys: workqueue.NewTypedRateLimitingQueue(limit), sync: sync, failureMessage: told}
}

// Run works until the context ends.
func (q *Queue) Run(ctx context.Context, spawn func(func())) {
	spawn(func() {
		<-ctx.Done()
		q.Keys.ShutDown()
	})
	for range keyWorkers {
		spawn(func() {
			for q.Next(ctx) {
			}
		})
	}
}

// Next waits for a key and works on it. It reports whether there may be more: not after the queue was shut down.
func (q *Queue) Next(ctx context.Context) bool {
	key, shutdown := q.Keys.Get()
	if shutdown {
		return false
	}
	defer q.Keys.Done(key)
	err := q.sync(ctx, key)
	switch {
	case err == nil:
		q.refusalLogged.Store(false)
		q.Keys.Forget(key)
	case ctx.Err() != nil:
	case apierrors.IsConflict(err):
		q.Keys.AddRateLimited(key) // the cache is stale
	case q.Remedy != "" && refusedForGood(err) && q.Keys.NumRequeues(key) >= FailureLogged:
		// An API server that has just started may refuse at first: it does not know all rights yet.
		if !q.refusalLogged.Swap(true) {
			klog.ErrorS(err, q.failureMessage+": "+q.Remedy, q.kind, key, "again", refusedRetry)
		}
		q.Keys.AddAfter(key, refusedRetry)
	default:
		if q.Keys.NumRequeues(key) == FailureLogged {
			klog.ErrorS(err, q.failureMessage, q.kind, key)
		}
		q.Keys.AddRateLimited(key)
	}
	return true
}

// refusedForGood reports whether the API server refused something permanently.
func refusedForGood(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) }
