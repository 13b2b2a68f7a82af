// Package desired holds the set of pods that should run on this node: those of the store and those of the manifest
// folder, and the pods that were removed from either and have not ended yet.
//
// The set only remembers. It starts and stops nothing: what follows from a change is decided by its caller.
package desired

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
	"github.com/edgecore-io/edgecore/edged/podstate/source"
	"github.com/edgecore-io/edgecore/edged/podstate/status"
	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// Pods is the set. Its methods may be called from any goroutine. Pods in it are immutable.
type Pods struct {
	mu   sync.Mutex
	pods map[types.UID]*Pod
}

// Pod is one pod of the set.
type Pod struct {
	Pod *v1.Pod
	// Static pods come from the manifest folder.
	Static bool
	// Restored pods were admitted before the agent or the device started, and are not admitted again.
	Restored bool
	Admitted bool
	// Rejected is why the pod was not admitted.
	Rejected *observed.Reason
	// Preparing pods were admitted, and wait for devices, for room, or for the labels of the Node before they start.
	Preparing bool
	// Stopped is why the node ends the pod, which is still desired; nil when it does not.
	Stopped *status.Stopped
	// Removed pods are no longer desired, but have not ended or were not cleaned up yet.
	Removed bool
	// Addresses are those of the pod when a container was last started in this run of the agent.
	Addresses []netip.Addr
}

// StaysRejected reports whether a pod of the API server was rejected. It was reported as Failed and never starts, but
// is still deleted in order.
func (p *Pod) StaysRejected() bool {
	return p.Rejected != nil && !p.Static && p.Pod.DeletionTimestamp == nil
}

// New returns an empty set.
func New() *Pods { return &Pods{pods: map[types.UID]*Pod{}} }

// SetStatic replaces all static pods, and returns those that were added and removed.
func (s *Pods) SetStatic(pods []*v1.Pod) (added, removed []*v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := map[types.UID]bool{}
	for _, pod := range pods {
		now[pod.UID] = true
		if have := s.pods[pod.UID]; have != nil && !have.Removed {
			continue
		}
		s.pods[pod.UID] = &Pod{Pod: pod, Static: true}
		added = append(added, pod)
	}
	for uid, have := range s.pods {
		if have.Static && !have.Removed && !now[uid] {
			have.Removed = true
			removed = append(removed, have.Pod)
		}
	}
	return added, removed
}

// Put adds a pod of the API server, or replaces it. It does nothing and returns false if a static pod has its UID.
// restored marks a pod that is added as read from the store when the agent started.
func (s *Pods) Put(pod *v1.Pod, restored bool) bool {
	pod = fromAPI(pod)
	s.mu.Lock()
	defer s.mu.Unlock()
	have := s.pods[pod.UID]
	if have == nil || have.Removed {
		s.pods[pod.UID] = &Pod{Pod: pod, Restored: restored}
		return true
	}
	if have.Static {
		return false
	}
	have.Pod = pod
	return true
}

// fromAPI returns a copy of a pod of the API server with the annotations that a kubelet sets. They replace what the
// pod's owner wrote: a pod that claims to be static would preempt others, and its status would not be reported.
// AnnotationSeen is the time of the pod's creation, not of its arrival, so that a restart of the agent does not change
// it.
func fromAPI(pod *v1.Pod) *v1.Pod {
	pod = pod.DeepCopy()
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[source.AnnotationSource] = source.API
	pod.Annotations[source.AnnotationSeen] = pod.CreationTimestamp.UTC().Format(time.RFC3339Nano)
	return pod
}

// Remove marks a pod as no longer desired and returns it. It returns nil if the pod is not in the set or is marked
// already.
func (s *Pods) Remove(uid types.UID) *v1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	have := s.pods[uid]
	if have == nil || have.Removed {
		return nil
	}
	have.Removed = true
	return have.Pod
}

// Forget drops a removed pod once nothing is left of it.
func (s *Pods) Forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if have := s.pods[uid]; have != nil && have.Removed {
		delete(s.pods, uid)
	}
}

// Get returns a copy of a pod's entry; ok is false if the pod is not in the set.
func (s *Pods) Get(uid types.UID) (have Pod, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.pods[uid]; p != nil {
		return *p, true
	}
	return Pod{}, false
}

// SetAdmission records that a pod was admitted, or why it was rejected.
func (s *Pods) SetAdmission(uid types.UID, rejected *observed.Reason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.pods[uid]; p != nil {
		p.Admitted, p.Rejected = rejected == nil, rejected
	}
}

// SetPreparing records whether an admitted pod is still being prepared for its start.
func (s *Pods) SetPreparing(uid types.UID, preparing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.pods[uid]; p != nil {
		p.Preparing = preparing
	}
}

// ForgetAdmission withdraws the admission of a pod, which is decided again: the agent stopped while the pod was being
// prepared.
func (s *Pods) ForgetAdmission(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.pods[uid]; p != nil {
		p.Preparing, p.Admitted = false, false
	}
}

// Stop records why the node ends a pod. It returns false if the pod is not in the set, was removed, or is stopped
// already.
func (s *Pods) Stop(uid types.UID, why *status.Stopped) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[uid]
	if p == nil || p.Removed || p.Stopped != nil {
		return false
	}
	p.Stopped = why
	return true
}

// SetAddresses records the addresses of a pod. A text that is not an address is left out.
func (s *Pods) SetAddresses(uid types.UID, ips []string) {
	var addresses []netip.Addr
	for _, ip := range ips {
		if addr, err := netip.ParseAddr(ip); err == nil {
			addresses = append(addresses, addr)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.pods[uid]; p != nil {
		p.Addresses = addresses
	}
}

// HasAddress reports whether an address was recorded of a pod.
func (s *Pods) HasAddress(addr netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pods {
		if slices.Contains(p.Addresses, addr) {
			return true
		}
	}
	return false
}

// All returns copies of all entries in the order in which pods start: restored pods first, then by creation time,
// namespace, name and UID.
func (s *Pods) All() []Pod {
	s.mu.Lock()
	list := make([]Pod, 0, len(s.pods))
	for _, p := range s.pods {
		list = append(list, *p)
	}
	s.mu.Unlock()
	smallsort.SortFunc(list, func(a, b Pod) int {
		if a.Restored != b.Restored {
			if a.Restored {
				return -1
			}
			return 1
		}
		return cmp.Or(
			a.Pod.CreationTimestamp.Compare(b.Pod.CreationTimestamp.Time),
			cmp.Compare(a.Pod.Namespace, b.Pod.Namespace),
			cmp.Compare(a.Pod.Name, b.Pod.Name),
			cmp.Compare(a.Pod.UID, b.Pod.UID),
		)
	})
	return list
}

// WithStatuses returns the pods with their newest status, by namespace and name. Pods on their way out are among them
// until nothing is left of them. A pod that was removed without a deletion time is shown as deleted at began, when this
// run of the agent began.
func (s *Pods) WithStatuses(statuses *status.Manager, began time.Time) []*v1.Pod {
	all := s.All()
	pods := make([]*v1.Pod, 0, len(all))
	for _, w := range all {
		pod := *w.Pod // shallow: what is below is never changed
		pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
		if st, ok := statuses.Get(pod.UID); ok {
			pod.Status = status.WithOthers(st, w.Pod)
		} else {
			pod.Status.Phase = cmp.Or(pod.Status.Phase, v1.PodPending)
		}
		if w.Removed && pod.DeletionTimestamp == nil {
			pod.DeletionTimestamp = &metav1.Time{Time: began.Truncate(time.Second)}
		}
		pods = append(pods, &pod)
	}
	smallsort.SortFunc(pods, func(a, b *v1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return pods
}
