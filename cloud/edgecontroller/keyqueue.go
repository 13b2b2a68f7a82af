package edgecontroller

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
	// keyTimeout is the timeout of one sync.
	keyTimeout = 20 * time.Second
	// keyFailureLogged is the failure of a key that is logged: after some 6 s.
	keyFailureLogged = 5
	// refusedRetry is how long a key waits after the API server has refused its sync, unless its object changes.
	refusedRetry = time.Hour
)

// keyQueue holds the keys of pods or nodes until their sync succeeds.
type keyQueue struct {
	kind           string // of the objects, for the log
	queue          workqueue.TypedRateLimitingInterface[string]
	sync           func(ctx context.Context, key string) error
	failureMessage string
	// remedy, if set, says what to do if the API server refuses a sync. A lasting refusal is logged once, and not
	// retried until the object changes or refusedRetry has passed.
	remedy        string
	refusalLogged atomic.Bool
}

// newKeyQueue makes a queue for objects of a kind; told is the log message if sync keeps failing.
func newKeyQueue(kind string, sync func(ctx context.Context, key string) error, told string) keyQueue {
	limit := workqueue.NewTypedItemExponentialFailureRateLimiter[string](200*time.Millisecond, 5*time.Minute)
	return keyQueue{kind: kind, queue: workqueue.NewTypedRateLimitingQueue(limit), sync: sync, failureMessage: told}
}

// run works until the context ends.
func (q *keyQueue) run(ctx context.Context, spawn func(func())) {
	spawn(func() {
		<-ctx.Done()
		q.queue.ShutDown()
	})
	for range keyWorkers {
		spawn(func() {
			for q.next(ctx) {
			}
		})
	}
}

func (q *keyQueue) next(ctx context.Context) bool {
	key, shutdown := q.queue.Get()
	if shutdown {
		return false
	}
	defer q.queue.Done(key)
	err := q.sync(ctx, key)
	switch {
	case err == nil:
		q.refusalLogged.Store(false)
		q.queue.Forget(key)
	case ctx.Err() != nil:
	case apierrors.IsConflict(err):
		q.queue.AddRateLimited(key) // the cache is stale
	case q.remedy != "" && refusedForGood(err) && q.queue.NumRequeues(key) >= keyFailureLogged:
		// An API server that has just started may refuse at first: it does not know all rights yet.
		if !q.refusalLogged.Swap(true) {
			klog.ErrorS(err, q.failureMessage+": "+q.remedy, q.kind, key, "again", refusedRetry)
		}
		q.queue.AddAfter(key, refusedRetry)
	default:
		if q.queue.NumRequeues(key) == keyFailureLogged {
			klog.ErrorS(err, q.failureMessage, q.kind, key)
		}
		q.queue.AddRateLimited(key)
	}
	return true
}

// refusedForGood reports whether the API server refused something permanently.
func refusedForGood(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) }
