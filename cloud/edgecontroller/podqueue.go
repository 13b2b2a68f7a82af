package edgecontroller

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

const (
	podWorkers = 4
	// podTimeout bounds what is done for one pod.
	podTimeout = 20 * time.Second
	// podFailureTold is the failure of a pod that is worth a line: after some 6 s.
	podFailureTold = 5
)

// podQueue holds the keys of pods for which something is to be done, until it is done.
type podQueue struct {
	queue workqueue.TypedRateLimitingInterface[string]
	sync  func(ctx context.Context, key string) error
	told  string
}

// newPodQueue makes a queue; told is what a line of the log says when sync keeps failing.
func newPodQueue(sync func(ctx context.Context, key string) error, told string) podQueue {
	limit := workqueue.NewTypedItemExponentialFailureRateLimiter[string](200*time.Millisecond, 5*time.Minute)
	return podQueue{workqueue.NewTypedRateLimitingQueue(limit), sync, told}
}

// run works until the context ends.
func (q *podQueue) run(ctx context.Context, spawn func(func())) {
	spawn(func() {
		<-ctx.Done()
		q.queue.ShutDown()
	})
	for range podWorkers {
		spawn(func() {
			for q.next(ctx) {
			}
		})
	}
}

func (q *podQueue) next(ctx context.Context) bool {
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
		if q.queue.NumRequeues(key) == podFailureTold {
			klog.ErrorS(err, q.told, "pod", key)
		}
		q.queue.AddRateLimited(key)
	}
	return true
}
