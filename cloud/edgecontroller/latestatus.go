package edgecontroller

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

	"github.com/edgecore-io/edgecore/pkg/resource"
)

// A status that waited here may be older than one that the node reported meanwhile through another cloudcore. The node
// has one status at a time and reports the newest, so a status that waited is written only if the pod is as it was
// when the status came from the node. If it is not, the node is told to send the status that it has now (503).

// lateAfter is how long a status may have waited and is written without conditions. The caches are often behind for a
// moment, and a node that moves to another cloudcore takes longer than this.
const lateAfter = time.Second

// recentAge is for how long at least changes of pods are remembered. Nodes of KubeEdge wait for a minute for an
// answer, ours for less; what waited for longer is not carried out.
const recentAge = 2 * time.Minute

// recentChanges knows when pods changed recently, as the caches saw it.
type recentChanges struct {
	mu sync.Mutex
	// now has the changes since began, before those of one recentAge or more before that.
	began       time.Time
	now, before map[types.UID]time.Time
}

func newRecentChanges() *recentChanges {
	return &recentChanges{now: map[types.UID]time.Time{}}
}

// changed notes that a pod is new or has changed; nil is ignored.
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

// since reports whether a pod changed at that time or later.
func (c *recentChanges) since(uid types.UID, at time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, ok := c.now[uid]
	if !ok {
		last, ok = c.before[uid]
	}
	return ok && !last.Before(at)
}

// waited reports whether a request has waited for so long that what it says may be old.
func (r *request) waited() bool { return time.Since(r.received) > lateAfter }

// outdated is the refusal of a status that may be old. The node sends its newest.
func outdated(r *request, name string) error {
	return apierrors.NewServiceUnavailable(
		fmt.Sprintf("pod %s/%s changed while its status waited in cloudcore for %v; "+
			"send the status again", r.key.Namespace, name, time.Since(r.received).Round(time.Second)))
}

// changedSince reports whether a pod, as the API server has it now, changed after a request came from its node.
func (c *Controller) changedSince(r *request, now *v1.Pod) bool {
	cached := c.caches.pod(now.Namespace, now.Name)
	return cached == nil || cached.UID != now.UID || cached.ResourceVersion != now.ResourceVersion ||
		c.recent.since(now.UID, r.received)
}

// currentStatus returns the patch that a request has for the status of a pod. If the request waited, the patch holds
// only for the version that the pod had when the request came. An error says that this is not known any more.
func (c *Controller) currentStatus(r *request, uid types.UID) ([]byte, error) {
	if !r.waited() {
		return r.content, nil
	}
	pod := c.caches.pod(r.key.Namespace, r.key.Name)
	if pod == nil || pod.UID != uid || c.recent.since(uid, r.received) {
		return nil, apierrors.NewConflict(gr(resource.TypePod), r.key.Name,
			fmt.Errorf("it changed while its status waited in cloudcore for %v",
				time.Since(r.received).Round(time.Second)))
	}
	return withVersion(r, pod.ResourceVersion)
}

// withVersion is the patch of a request with a resourceVersion: the API server answers another version with a conflict.
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

// refusedStatus is what a node is told of a status that was not written. If the pod that it is about is gone or another
// by now, the answer is final, and the hub is told which pod the node holds: it sends the node what became of it. If
// the pod is the same, a conflict is one of versions, and the node is to send its newest status.
func (c *Controller) refusedStatus(ctx context.Context, r *request, uid types.UID, refusal error) error {
	conflict, gone := apierrors.IsConflict(refusal), apierrors.IsNotFound(refusal)
	if !conflict && !gone && !apierrors.IsForbidden(refusal) && !apierrors.IsInvalid(refusal) {
		return refusal
	}
	pod, err := c.clients.Own.CoreV1().Pods(r.key.Namespace).Get(ctx, r.key.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && pod.UID != uid:
		c.hub.Holds(r.node, resource.Key{Namespace: r.key.Namespace, Type: resource.TypePod, Name: r.key.Name}, uid)
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
