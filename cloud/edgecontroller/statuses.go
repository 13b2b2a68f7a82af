package edgecontroller

import (
	"strconv"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// statuses tracks what connected nodes of ours reported last about their pods, and for which pods the API server has an
// older status than their node. A node reports both in its session's inventory. Until the inventory has arrived, and
// for pods that it lists as pending, cached statuses are not relied on.
type statuses struct {
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
	// requests are those of statusRequests.
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

func newStatuses() *statuses { return &statuses{nodes: map[string]*nodeStatuses{}} }

// connected starts a session; inventory is set if the node sends an inventory.
func (s *statuses) connected(node string, inventory bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	links := 1
	if n := s.nodes[node]; n != nil {
		links += n.links
	}
	s.nodes[node] = &nodeStatuses{links: links, awaited: inventory}
}

func (s *statuses) disconnected(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[node]; n != nil {
		if n.links--; n.links <= 0 {
			delete(s.nodes, node)
		}
	}
}

// inventoried records an inventory: the pods whose newest status has yet to arrive, and the last statuses of others.
// Statuses that arrived before it are newer than it.
func (s *statuses) inventoried(node string, pending map[types.UID]bool, last map[types.UID]lastStatus) {
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

// reported records a status that the API server stored for a node, and reports whether it was awaited.
func (s *statuses) reported(node string, uid types.UID, status lastStatus) (awaited bool) {
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

// forget drops what is known about a pod that is gone.
func (s *statuses) forget(node string, uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[node]; n != nil {
		delete(n.pending, uid)
		delete(n.last, uid)
		n.requests.forget(uid)
	}
}

// current reports whether the API server has a pod's newest status, as far as its node has reported.
func (s *statuses) current(node string, uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[node]
	return n != nil && !n.awaited && !n.pending[uid]
}

// inventory is what a node says in its session's inventory.
type inventory struct {
	// has are the cached pods that the node has.
	has map[types.UID]bool
	// pending are those whose newest status has yet to arrive, last the last statuses of others.
	pending map[types.UID]bool
	last    map[types.UID]lastStatus
	// report are the keys of the pods whose status at the API server is not the last one that the node reported.
	report []string
}

// compareInventory compares the pods that a node has with the caches. It encodes one status for each pod in both, and
// makes no requests.
func compareInventory(caches *caches.Caches, node string, pods []wire.Held) inventory {
	out := inventory{
		has: map[types.UID]bool{}, pending: map[types.UID]bool{}, last: map[types.UID]lastStatus{},
	}
	for i := range pods {
		held := &pods[i]
		pod := caches.Held(node, held)
		if pod == nil || out.has[pod.UID] {
			continue
		}
		out.has[pod.UID] = true
		if held.Status == "" { // an edgecore older than status hashes, or a pod without a report
			continue
		}
		if held.Status == wire.StatusPending {
			out.pending[pod.UID] = true
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
			out.pending[pod.UID] = true
			out.report = append(out.report, held.Key)
		}
		if status, ok := newLastStatus(held.Status, version); ok {
			out.last[pod.UID] = status
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

// storedStatus returns a status as the API server has stored it, so that only changes by other writers differ from it.
func storedStatus(pod *v1.Pod) lastStatus {
	hash, err := caches.StatusHash(&pod.Status)
	if err != nil {
		klog.ErrorS(err, "Status that a node reported is not compared", "pod", klog.KObj(pod))
		return lastStatus{}
	}
	status, _ := newLastStatus(hash, versionOf(pod))
	return status
}
