package edged

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/observed"
	"github.com/edgecore-io/edgecore/edged/source"
	"github.com/edgecore-io/edgecore/edged/status"
)

// wanted is the set of pods that somebody wants on this node, and those that are on their way out.
// It only remembers; what follows from a change is its caller's business. Pods in it are immutable.
type wanted struct {
	mu   sync.Mutex
	pods map[types.UID]*want
}

// want is one pod of the set.
type want struct {
	pod    *v1.Pod
	static bool
	// restored pods were admitted before the agent (or the device) started, and are not judged again.
	restored bool
	admitted bool
	// rejected says why the pod was not admitted.
	rejected *observed.Reason
	// preparing: the pod was admitted, and waits for devices, room, or the cloud's word before it starts.
	preparing bool
	// stopped says why the node ends the pod, which is still wanted; nil that it does not.
	stopped *status.Stopped
	// leaving: nobody wants the pod any more, but something of it is still there.
	leaving bool
}

// staysRejected reports whether a pod of the API server was rejected: it was reported as Failed, and never starts. Its
// deletion goes on.
func (w *want) staysRejected() bool {
	return w.rejected != nil && !w.static && w.pod.DeletionTimestamp == nil
}

func newWanted() *wanted { return &wanted{pods: map[types.UID]*want{}} }

// setStatic replaces all static pods, and returns what came and what went.
func (w *wanted) setStatic(pods []*v1.Pod) (added, removed []*v1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := map[types.UID]bool{}
	for _, pod := range pods {
		now[pod.UID] = true
		if have := w.pods[pod.UID]; have != nil && !have.leaving {
			continue
		}
		w.pods[pod.UID] = &want{pod: pod, static: true}
		added = append(added, pod)
	}
	for uid, have := range w.pods {
		if have.static && !have.leaving && !now[uid] {
			have.leaving = true
			removed = append(removed, have.pod)
		}
	}
	return added, removed
}

// put adds or replaces a pod of the store. It returns false when the pod is no news.
func (w *wanted) put(pod *v1.Pod, restored bool) bool {
	pod = fromAPI(pod)
	w.mu.Lock()
	defer w.mu.Unlock()
	have := w.pods[pod.UID]
	if have == nil || have.leaving {
		w.pods[pod.UID] = &want{pod: pod, restored: restored}
		return true
	}
	if have.static {
		return false // a UID belongs to one source
	}
	have.pod = pod
	return true
}

// fromAPI returns a pod of the API server with the annotations that a kubelet gives it. They replace those that its owner wrote: as a
// static pod it would preempt others, and nothing would be reported of it. A kubelet notes the time when it first saw the pod; its
// creation does not change when the agent restarts.
func fromAPI(pod *v1.Pod) *v1.Pod {
	pod = pod.DeepCopy()
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[source.AnnotationSource] = source.API
	pod.Annotations[source.AnnotationSeen] = pod.CreationTimestamp.UTC().Format(time.RFC3339Nano)
	return pod
}

// leave marks a pod as no longer wanted, and returns it, or nil when it is not there.
func (w *wanted) leave(uid types.UID) *v1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	have := w.pods[uid]
	if have == nil || have.leaving {
		return nil
	}
	have.leaving = true
	return have.pod
}

// forget drops a pod that is leaving: nothing is left of it.
func (w *wanted) forget(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if have := w.pods[uid]; have != nil && have.leaving {
		delete(w.pods, uid)
	}
}

// get returns what is known of a pod; ok is false when it is not in the set.
func (w *wanted) get(uid types.UID) (have want, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.pods[uid]; p != nil {
		return *p, true
	}
	return want{}, false
}

// judge records the outcome of an admission.
func (w *wanted) judge(uid types.UID, rejected *observed.Reason) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.pods[uid]; p != nil {
		p.admitted, p.rejected = rejected == nil, rejected
	}
}

// prepare notes that a pod is being made ready, or is ready.
func (w *wanted) prepare(uid types.UID, preparing bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.pods[uid]; p != nil {
		p.preparing = preparing
	}
}

// unjudge has a pod judged anew, because the agent ended while it was being made ready.
func (w *wanted) unjudge(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.pods[uid]; p != nil {
		p.preparing, p.admitted = false, false
	}
}

// stop notes why the node ends a pod. It returns false where the pod is not there or ends already.
func (w *wanted) stop(uid types.UID, why *status.Stopped) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pods[uid]
	if p == nil || p.leaving || p.stopped != nil {
		return false
	}
	p.stopped = why
	return true
}

// all returns the set in the order in which pods are to start: those restored from before first,
// then by creation, name and UID.
func (w *wanted) all() []want {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]want, 0, len(w.pods))
	for p := range maps.Values(w.pods) {
		list = append(list, *p)
	}
	slices.SortFunc(list, func(a, b want) int {
		if a.restored != b.restored {
			if a.restored {
				return -1
			}
			return 1
		}
		return cmp.Or(a.pod.CreationTimestamp.Compare(b.pod.CreationTimestamp.Time),
			cmp.Compare(a.pod.Namespace, b.pod.Namespace), cmp.Compare(a.pod.Name, b.pod.Name), cmp.Compare(a.pod.UID, b.pod.UID))
	})
	return list
}

// isStatic tells whether a pod comes from a manifest on this node.
func isStatic(pod *v1.Pod) bool { return source.IsStatic(pod) }
