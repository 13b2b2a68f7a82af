package node

import (
	"context"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// leaseRetry is how soon a renewal that failed is tried again, at first.
const leaseRetry = time.Second

// lease renews the lease of a Node, by which controllers see that the node is alive.
type lease struct {
	cloud    Cloud
	name     string
	duration time.Duration
	// retryNow requests that a renewal that failed is tried again at once.
	retryNow notify.Signal

	mu sync.Mutex
	// owner is the Node in the cloud, which owns the lease; nil while it is unknown.
	owner *metav1.OwnerReference
	// renewedAt is when the cloud last confirmed the lease; zero when it has not yet.
	renewedAt time.Time
	// lapse is the last renewal before the newest time without a lease; zero if there was none. loggedAt is the one
	// that lapsed has reported.
	lapse, loggedAt time.Time

	// have is the newest lease that the cloud confirmed; nil when it is to be read.
	have *coordinationv1.Lease
}

func newLease(cloud Cloud, name string, duration time.Duration) *lease {
	return &lease{cloud: cloud, name: name, duration: duration, retryNow: notify.NewSignal()}
}

// setOwner notes the Node; nil that there is none any more.
func (l *lease) setOwner(node *v1.Node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.owner = nil
	if node != nil {
		l.owner = &metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
	}
}

// lapsed reports, once each time, whether the lease was not renewed for so long that a controller may have taken the
// node for lost. It may have been renewed since.
func (l *lease) lapsed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noteLapse()
	again := l.lapse.Equal(l.loggedAt)
	l.loggedAt = l.lapse
	return !again
}

// noteLapse notes a time without a lease. It is called under the lock.
func (l *lease) noteLapse() {
	if !l.renewedAt.IsZero() && time.Since(l.renewedAt) >= l.duration {
		l.lapse = l.renewedAt
	}
}

// runAfter runs the lease once first is closed, or has not been for a quarter of the lease's duration.
func (l *lease) runAfter(ctx context.Context, first <-chan struct{}) {
	timer := time.NewTimer(leaseAge(l.duration))
	defer timer.Stop()
	select {
	case <-first:
	case <-timer.C:
	case <-ctx.Done():
		return
	}
	l.run(ctx)
}

// run renews the lease until ctx ends: when a quarter of its duration has passed, and after a failure at growing
// intervals.
func (l *lease) run(ctx context.Context) {
	age := leaseAge(l.duration)
	backoff := retry.NewBackoff(min(leaseRetry, age), age)
	for {
		wait := age
		if err := l.renew(ctx); err != nil {
			if ctx.Err() == nil {
				klog.V(2).InfoS("Not done yet; trying again", "what", "renew node lease", "node", l.name, "err", err)
			}
			l.have = nil // it may have changed: read it again
			wait = backoff.Next()
		} else {
			backoff.Reset()
		}
		if !l.sleep(ctx, wait) {
			return
		}
	}
}

// sleep waits for the next renewal. A notification ends the wait if the last renewal has failed.
func (l *lease) sleep(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-l.retryNow:
			if l.have == nil {
				return true
			}
		}
	}
}

// inTime bounds one question to the cloud: an answer that is lost must not use up the lease. A kubelet's bound is of
// the same length.
func (l *lease) inTime(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, leaseAge(l.duration))
}

func (l *lease) read(ctx context.Context) (*coordinationv1.Lease, error) {
	ctx, cancel := l.inTime(ctx)
	defer cancel()
	return l.cloud.Lease(ctx, l.name)
}

func (l *lease) update(ctx context.Context, next *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	ctx, cancel := l.inTime(ctx)
	defer cancel()
	return l.cloud.UpdateLease(ctx, next)
}

// renew renews the lease, and makes it where there is none.
func (l *lease) renew(ctx context.Context) error {
	next, err := l.next(ctx)
	if err != nil {
		return err
	}
	l.have = next
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noteLapse()
	l.renewedAt = time.Now()
	return nil
}

func (l *lease) next(ctx context.Context) (*coordinationv1.Lease, error) {
	have := l.have
	if have == nil {
		var err error
		if have, err = l.read(ctx); apierrors.IsNotFound(err) {
			return l.create(ctx)
		} else if err != nil {
			return nil, err
		}
	}
	next := have.DeepCopy()
	next.TypeMeta = metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
	next.Spec = l.spec(renewTime(time.Now(), have.Spec.RenewTime, leaseAge(l.duration)))
	if len(next.OwnerReferences) == 0 && l.have == nil {
		if owner, err := l.ownerOf(ctx); err == nil { // else the next reading tries it again
			next.OwnerReferences = []metav1.OwnerReference{*owner}
		}
	}
	return l.update(ctx, next)
}

// create makes the lease. One without an owner would outlive its Node: it is made when the Node is known.
func (l *lease) create(ctx context.Context) (*coordinationv1.Lease, error) {
	owner, err := l.ownerOf(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := l.inTime(ctx)
	defer cancel()
	return l.cloud.CreateLease(ctx, &coordinationv1.Lease{
		TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{
			Name:            l.name,
			Namespace:       v1.NamespaceNodeLease,
			OwnerReferences: []metav1.OwnerReference{*owner},
		},
		Spec: l.spec(time.Now()),
	})
}

// ownerOf is the Node of the lease; it is asked for where this agent has not registered it.
func (l *lease) ownerOf(ctx context.Context) (*metav1.OwnerReference, error) {
	l.mu.Lock()
	owner := l.owner
	l.mu.Unlock()
	if owner != nil {
		return owner, nil
	}
	ctx, cancel := l.inTime(ctx)
	defer cancel()
	node, err := l.cloud.Node(ctx, l.name)
	if err != nil {
		return nil, err
	}
	l.setOwner(node)
	return &metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}, nil
}

func (l *lease) spec(renewed time.Time) coordinationv1.LeaseSpec {
	return coordinationv1.LeaseSpec{
		HolderIdentity:       &l.name,
		LeaseDurationSeconds: ptr.To(int32(l.duration / time.Second)),
		RenewTime:            &metav1.MicroTime{Time: renewed},
	}
}

// leaseAge is how long a lease of a duration is left alone.
func leaseAge(duration time.Duration) time.Duration { return duration / 4 }

// renewTime is what a renewal is dated. Anyone who watches the lease believes in a renewal that is newer than the one
// before: a device whose clock has gone back since, to 1970 say, goes on from there.
func renewTime(now time.Time, before *metav1.MicroTime, step time.Duration) time.Time {
	if before == nil || now.After(before.Time) {
		return now
	}
	return before.Add(step)
}
