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
	// keyTimeout bounds what is done for one key.
	keyTimeout = 20 * time.Second
	// keyFailureLogged is the failure of a key that is worth a line: after some 6 s.
	keyFailureLogged = 5
	// refusedRetry is how long a key waits for which the API server refuses what is to be done, unless something
	// changes.
	refusedRetry = time.Hour
)

// keyQueue holds the keys of pods or nodes for which something is to be done, until it is done.
type keyQueue struct {
	kind           string // of the objects, for the log
	queue          workqueue.TypedRateLimitingInterface[string]
	sync           func(ctx context.Context, key string) error
	failureMessage string
	// remedy, if it is set, says what to do about a refusal of the API server: one that lasts is told once, and not
	// tried again until the object changes or refusedRetry has passed.
	remedy        string
	refusalLogged atomic.Bool
}

// newKeyQueue makes a queue for objects of a kind; told is what a line of the log says when sync keeps failing.
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
		q.queue.AddRateLimited(key) // the cache is behind
	case q.remedy != "" && refusedForGood(err) && q.queue.NumRequeues(key) >= keyFailureLogged:
		// The first failures may be those of an API server that has just started and does not know all rights yet.
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

// refusedForGood reports whether the API server refuses something because of what it is.
func refusedForGood(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) }
