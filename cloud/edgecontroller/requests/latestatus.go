package requests

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/edgecore-io/edgecore/pkg/resource"
)

// A status that waited here may be older than one that the node reported meanwhile through another cloudcore. The node
// has one status at a time and reports the newest. So a status that waited is written only if the pod has not changed
// since the status arrived. Otherwise the node must send its current status (503).

// lateAfter is how long a status may have waited and still be written unconditionally. The caches often lag for a
// moment, and a node that moves to another cloudcore takes longer than this.
const lateAfter = time.Second

// recentAge is the minimum time for which changes of pods are remembered. KubeEdge's edgecores wait a minute for an
// answer, ours less; requests that waited longer are dropped.
const recentAge = 2 * time.Minute

// recentChanges records when pods changed recently, as the caches saw it.
type recentChanges struct {
	mu sync.Mutex
	// now has the changes since began, before those of at least one recentAge earlier.
	began       time.Time
	now, before map[types.UID]time.Time
}

func newRecentChanges() *recentChanges {
	return &recentChanges{now: map[types.UID]time.Time{}}
}

// changed records that a pod is new or changed; nil is ignored.
func (c *recentChanges) changed(pod *v1.Pod) {
	if pod == nil {
		return
	}
	at := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if at.Sub(c.began) >= recentAge {
		c.began, c.before, c.now = at, c.now, map[types.UID]time.Time{}
	}
	c.now[pod.UID] = at
}

// changedSince reports whether a pod changed at that time or later.
func (c *recentChanges) changedSince(uid types.UID, at time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, ok := c.now[uid]
	if !ok {
		last, ok = c.before[uid]
	}
	return ok && !last.Before(at)
}

// lateStatuses guards against statuses that waited here.
type lateStatuses struct {
	own    kubernetes.Interface
	caches Caches
	recent *recentChanges
	hub    Hub
}

// waited reports whether a request has waited so long that its content may be outdated.
func (r *request) waited() bool { return time.Since(r.received) > lateAfter }

// outdated refuses a status that may be old. The node then sends its newest.
func outdated(r *request, name string) error {
	return apierrors.NewServiceUnavailable(
		fmt.Sprintf("pod %s/%s changed while its status waited in cloudcore for %v; "+
			"send the status again", r.key.Namespace, name, time.Since(r.received).Round(time.Second)))
}

// changedSince reports whether a pod, as read from the API server, changed after a request arrived from its node.
func (l *lateStatuses) changedSince(r *request, now *v1.Pod) bool {
	cached := l.caches.Pod(now.Namespace, now.Name)
	return cached == nil || cached.UID != now.UID || cached.ResourceVersion != now.ResourceVersion ||
		l.recent.changedSince(now.UID, r.received)
}

// currentStatus returns a request's patch of a pod's status. If the request waited, the patch is bound to the pod's
// version at its arrival; it is an error if that version is no longer known.
func (l *lateStatuses) currentStatus(r *request, uid types.UID) ([]byte, error) {
	if !r.waited() {
		return r.content, nil
	}
	pod := l.caches.Pod(r.key.Namespace, r.key.Name)
	if pod == nil || pod.UID != uid || l.recent.changedSince(uid, r.received) {
		return nil, apierrors.NewConflict(gr(resource.TypePod), r.key.Name,
			fmt.Errorf("it changed while its status waited in cloudcore for %v",
				time.Since(r.received).Round(time.Second)))
	}
	return withVersion(r, pod.ResourceVersion)
}

// withVersion adds a resourceVersion to a request's patch: the API server then answers a conflict if the pod has
// another version.
func withVersion(r *request, version string) ([]byte, error) {
	fields, err := patchText(r)
	if err != nil {
		return nil, err
	}
	var meta map[string]json.RawMessage
	if err := json.Unmarshal(fields["metadata"], &meta); err != nil {
		return nil, badRequest(r.key, "metadata of the patch: %v", err)
	}
	if meta["resourceVersion"], err = json.Marshal(version); err != nil {
		return nil, err
	}
	if fields["metadata"], err = json.Marshal(meta); err != nil {
		return nil, err
	}
	return json.Marshal(fields)
}

// refusedStatus answers a status that was not written. If its pod is gone or replaced, the answer is final, and the hub
// learns which pod the node holds and sends the node its deletion. If the pod is the same, a conflict is about
// versions, and the node must send its newest status.
func (l *lateStatuses) refusedStatus(ctx context.Context, r *request, uid types.UID, refusal error) error {
	// A webhook may deny the status with any code.
	conflict, gone := apierrors.IsConflict(refusal), apierrors.IsNotFound(refusal) || apierrors.IsGone(refusal)
	if !conflict && !gone && !apierrors.IsForbidden(refusal) && !apierrors.IsInvalid(refusal) {
		return refusal
	}
	pod, err := l.own.CoreV1().Pods(r.key.Namespace).Get(ctx, r.key.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && pod.UID != uid:
		l.hub.Holds(r.node, resource.Key{Namespace: r.key.Namespace, Type: resource.TypePod, Name: r.key.Name}, uid)
		switch {
		case gone:
			return refusal
		case err != nil:
			return apierrors.NewNotFound(gr(resource.TypePod), r.key.Name)
		}
		return apierrors.NewConflict(gr(resource.TypePod), r.key.Name,
			fmt.Errorf("its UID is %s, not %s", pod.UID, uid))
	case conflict || gone:
		return apierrors.NewServiceUnavailable(fmt.Sprintf("send the status of pod %s/%s again: %v",
			r.key.Namespace, r.key.Name, refusal))
	}
	return refusal
}
