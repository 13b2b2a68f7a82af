// Package statuses keeps a hash of the status that each connected node of ours reported last for each of its pods. If
// another writer changes such a status, it asks the node to report it again.
package statuses

import (
	"strconv"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Statuses tracks what connected nodes of ours reported last about their pods, and for which pods the API server has an
// older status than their node. A node reports both in its session's inventory. Until the inventory has arrived, and
// for pods that it lists as pending, cached statuses are not relied on.
type Statuses struct {
	mu    sync.Mutex
	nodes map[string]*nodeStatuses
}

type nodeStatuses struct {
	// links counts sessions, as in session: there may briefly be two.
	links int
	// awaited is set until the newest session's inventory arrives.
	awaited bool
	// pending are the pods whose newest status has yet to arrive from the node.
	pending map[types.UID]bool
	// last has the status of each pod that the node reported last in this session, as the API server stored it.
	last map[types.UID]lastStatus
	// requests are those of Requests.
	requests requestLimits
}

// lastStatus is a status that a node has reported. The zero value is one that is not compared.
type lastStatus struct {
	hash [statusHashLen]byte
	// version is the resource version of the pod with this status; 0 if it is unknown.
	version uint64
}

// statusHashLen is the length of a wire.StatusHash.
const statusHashLen = 12

// newLastStatus returns the status with this hash and this resource version of its pod. ok is false if hash is not a
// wire.StatusHash.
func newLastStatus(hash string, version uint64) (s lastStatus, ok bool) {
	if len(hash) != statusHashLen {
		return s, false
	}
	s.version = version
	copy(s.hash[:], hash)
	return s, true
}

// versionOf returns a pod's resource version as a number, 0 if it is not one. The API server's versions are in this
// order.
func versionOf(pod *v1.Pod) uint64 {
	n, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// New returns the statuses of no node.
func New() *Statuses { return &Statuses{nodes: map[string]*nodeStatuses{}} }

// Connected starts a session; inventory is set if the node sends an inventory.
func (s *Statuses) Connected(node string, inventory bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	links := 1
	if n := s.nodes[node]; n != nil {
		links += n.links
	}
	s.nodes[node] = &nodeStatuses{links: links, awaited: inventory}
}

// Disconnected ends a session.
func (s *Statuses) Disconnected(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[node]; n != nil {
		if n.links--; n.links <= 0 {
			delete(s.nodes, node)
		}
	}
}

// Inventoried records an inventory: the pods whose newest status has yet to arrive, and the last statuses of others.
// Statuses that arrived before it are newer than it.
func (s *Statuses) Inventoried(node string, pending map[types.UID]bool, last map[types.UID]lastStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[node]
	if n == nil {
		return
	}
	if n.awaited {
		for uid, newer := range n.last {
			delete(pending, uid)
			last[uid] = newer
		}
	} else {
		for uid, known := range n.last {
			if _, named := last[uid]; !named {
				last[uid] = known
			}
		}
	}
	n.awaited, n.pending, n.last = false, pending, last
}

// Reported records a status that the API server stored for a node, and reports whether it was awaited.
func (s *Statuses) Reported(node string, uid types.UID, status lastStatus) (awaited bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[node]
	if n == nil {
		return false
	}
	if n.last == nil {
		n.last = map[types.UID]lastStatus{}
	}
	n.last[uid] = status
	awaited = n.pending[uid]
	delete(n.pending, uid)
	return awaited
}

// Forget drops what is known about a pod that is gone.
func (s *Statuses) Forget(node string, uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[node]; n != nil {
		delete(n.pending, uid)
		delete(n.last, uid)
		n.requests.forget(uid)
	}
}

// Current reports whether the API server has a pod's newest status, as far as its node has reported.
func (s *Statuses) Current(node string, uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[node]
	return n != nil && !n.awaited && !n.pending[uid]
}

// inventory is what a node says in its session's inventory.
type inventory struct {
	// Has are the cached pods that the node has.
	Has map[types.UID]bool
	// Pending are those whose newest status has yet to arrive, last the last statuses of others.
	Pending map[types.UID]bool
	Last    map[types.UID]lastStatus
	// Report are the keys of the pods whose status at the API server is not the last one that the node reported.
	Report []string
}

// CompareInventory compares the pods that a node has with the caches. It encodes one status for each pod in both, and
// makes no requests.
func CompareInventory(caches *caches.Caches, node string, pods []wire.Held) inventory {
	out := inventory{
		Has: map[types.UID]bool{}, Pending: map[types.UID]bool{}, Last: map[types.UID]lastStatus{},
	}
	for i := range pods {
		held := &pods[i]
		pod := caches.Held(node, held)
		if pod == nil || out.Has[pod.UID] {
			continue
		}
		out.Has[pod.UID] = true
		if held.Status == "" { // an edgecore older than status hashes, or a pod without a report
			continue
		}
		if held.Status == wire.StatusPending {
			out.Pending[pod.UID] = true
			continue
		}
		same, err := sameStatus(pod, held.Status)
		if err != nil {
			klog.ErrorS(err, "Status of a pod not compared with its node's", "pod", klog.KObj(pod), "node", node)
			continue
		}
		version := versionOf(pod)
		if !same {
			version = 0
			out.Pending[pod.UID] = true
			out.Report = append(out.Report, held.Key)
		}
		if status, ok := newLastStatus(held.Status, version); ok {
			out.Last[pod.UID] = status
		}
	}
	return out
}

// sameStatus reports whether a pod's status is the last one that its node reported, apart from what readiness undoes:
// the condition Ready that Kubernetes changed while the node was silent.
func sameStatus(pod *v1.Pod, want string) (bool, error) {
	hash, ready, err := caches.StatusHashes(pod)
	return err == nil && (hash == want || ready == want), err
}

// StoredStatus returns a status as the API server has stored it, so that only changes by other writers differ from it.
func StoredStatus(pod *v1.Pod) lastStatus {
	hash, err := caches.StatusHash(&pod.Status)
	if err != nil {
		klog.ErrorS(err, "Status that a node reported is not compared", "pod", klog.KObj(pod))
		return lastStatus{}
	}
	status, _ := newLastStatus(hash, versionOf(pod))
	return status
}
