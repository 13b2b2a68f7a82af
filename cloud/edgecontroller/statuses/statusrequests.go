package statuses

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/keyqueue"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

const (
	// statusDelay is how long a status may differ before its node is asked: another change often follows.
	statusDelay = time.Second
	// statusRetryMin is how long a pod's second request waits after the first one. Each further one waits twice as
	// long, up to statusRetryMax.
	statusRetryMin, statusRetryMax = 5 * time.Second, 5 * time.Minute
	// statusRetryReset is how long after its last request a pod counts as never requested.
	statusRetryReset = 2 * statusRetryMax
	// statusRequestRate and statusRequestBurst limit a node's requests per second.
	statusRequestRate, statusRequestBurst = 5, 20
	// statusRateWait is how long a pod waits if its node has had too many requests.
	statusRateWait = time.Second
)

// Requests asks a node to report a pod's status again when the status in the API server differs from the one that
// the node reported last. Then another writer has changed it: a person, a controller, or a copy of the device that was
// connected to another cloudcore. The node would not report it without a request, since nothing changed there.
//
// If another writer repeats its change, the number of writes is bounded: after a few requests there is one per
// statusRetryMax for a pod. A kubelet would overwrite each change. The waits start from the beginning with each session
// of the node.
type Requests struct {
	keyqueue.Queue
	caches   *caches.Caches
	statuses *Statuses
	// made counts the requests.
	made prometheus.Counter
	hub  Hub // set by Start
}

// Hub is what Requests needs from the hub.
type Hub interface {
	// RequestStatus asks a node to report a pod's status again; see edgecontroller.Hub.
	RequestStatus(node string, key resource.Key, uid types.UID) bool
}

// NewRequests makes requests, which made counts. Start and Run must be called.
func NewRequests(caches *caches.Caches, statuses *Statuses, made prometheus.Counter) *Requests {
	r := &Requests{caches: caches, statuses: statuses, made: made}
	r.Queue = keyqueue.New("pod", r.sync, "Status of a pod not compared with what its node reported; trying again")
	return r
}

// Start sets the hub. It must return before Run.
func (r *Requests) Start(hub Hub) { r.hub = hub }

// PodChanged queues a pod for a comparison if its status may differ from the one that its node reported.
func (r *Requests) PodChanged(pod *v1.Pod) {
	if _, ok := r.statuses.compared(pod); ok {
		r.Keys.AddAfter(pod.Namespace+"/"+pod.Name, statusDelay)
	}
}

func (r *Requests) sync(_ context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	pod := r.caches.Pod(namespace, name)
	if pod == nil {
		return nil
	}
	hash, ok := r.statuses.compared(pod)
	if !ok {
		return nil
	}
	if same, err := sameStatus(pod, hash); err != nil || same {
		return err
	}
	node := pod.Spec.NodeName
	wait, ask := r.statuses.request(node, pod.UID, time.Now())
	if ask {
		if !r.hub.RequestStatus(node, caches.PodKey(pod), pod.UID) {
			return nil // it is not connected any more, or cannot be asked
		}
		r.made.Inc()
		klog.V(1).InfoS("Another writer has changed the status of a pod; its node is asked to report it again",
			"pod", klog.KObj(pod), "node", node, "again", wait)
	}
	r.Keys.AddAfter(key, wait) // the request, or the report, may be lost
	return nil
}

// compared returns the hash of the status that a pod's node reported last. ok is false if there is nothing to compare:
// the node is not connected here, has a newer status, or has reported none in this session, or the pod is not newer
// than the node's report.
func (s *Statuses) compared(pod *v1.Pod) (hash string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[pod.Spec.NodeName]
	if n == nil || n.awaited || n.pending[pod.UID] {
		return "", false
	}
	last := n.last[pod.UID]
	if version := versionOf(pod); last == (lastStatus{}) || version > 0 && version <= last.version {
		return "", false
	}
	return string(last.hash[:]), true
}

// request reports whether a node is to be asked for a pod's status now, and counts it as asked. wait is how long to
// wait before the pod is compared again.
func (s *Statuses) request(node string, uid types.UID, now time.Time) (wait time.Duration, ask bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[node]
	if n == nil {
		return statusRetryMin, false
	}
	return n.requests.next(uid, now)
}

// requestLimits limits the requests to one node. The zero value is ready to use.
type requestLimits struct {
	rate *rate.Limiter
	pods map[types.UID]podRequests
}

// podRequests are the requests for one pod: when the last one was made, and how long after it the next one may follow.
type podRequests struct {
	last time.Time
	wait time.Duration
}

// next implements Statuses.request.
func (l *requestLimits) next(uid types.UID, now time.Time) (wait time.Duration, ask bool) {
	pod := l.pods[uid]
	if now.Sub(pod.last) >= statusRetryReset {
		pod = podRequests{}
	}
	if rest := pod.wait - now.Sub(pod.last); rest > 0 {
		return rest, false
	}
	if l.rate == nil {
		l.rate, l.pods = rate.NewLimiter(statusRequestRate, statusRequestBurst), map[types.UID]podRequests{}
	}
	if !l.rate.AllowN(now, 1) {
		return statusRateWait, false
	}
	pod = podRequests{last: now, wait: min(max(2*pod.wait, statusRetryMin), statusRetryMax)}
	l.pods[uid] = pod
	return pod.wait, true
}

func (l *requestLimits) forget(uid types.UID) { delete(l.pods, uid) }
