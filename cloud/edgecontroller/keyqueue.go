package edgecontroller

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

const (
	keyWorkers = 4
	// keyTimeout bounds what is done for one key.
	keyTimeout = 20 * time.Second
	// keyFailureTold is the failure of a key that is worth a line: after some 6 s.
	keyFailureTold = 5
)

// keyQueue holds the keys of pods or nodes for which something is to be done, until it is done.
type keyQueue struct {
	kind  string // of the objects, for the log
	queue workqueue.TypedRateLimitingInterface[string]
	sync  func(ctx context.Context, key string) error
	told  string
}

// newKeyQueue makes a queue for objects of a kind; told is what a line of the log says when sync keeps failing.
func newKeyQueue(kind string, sync func(ctx context.Context, key string) error, told string) keyQueue {
	limit := workqueue.NewTypedItemExponentialFailureRateLimiter[string](200*time.Millisecond, 5*time.Minute)
	return keyQueue{kind, workqueue.NewTypedRateLimitingQueue(limit), sync, told}
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
		q.queue.Forget(key)
	case ctx.Err() != nil:
	case apierrors.IsConflict(err):
		q.queue.AddRateLimited(key) // the cache is behind
	default:
		if q.queue.NumRequeues(key) == keyFailureTold {
			klog.ErrorS(err, q.told, q.kind, key)
		}
		q.queue.AddRateLimited(key)
	}
	return true
}
