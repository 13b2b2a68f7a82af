package edgecontroller

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/pkg/resource"
)

// Limits of the pods of a node, in bytes of contentSize. A device has its pods in memory and in its store, whoever made
// them: also those that have ended, until they are deleted.
const (
	// ownPodBytes is what each namespace may have on a node in any case: about 30 ordinary pods.
	ownPodBytes = 1 << 20
	// sharedPodBytes is what all namespaces may have on a node beyond that.
	sharedPodBytes = 16 << 20
)

// podNeed is what a pod needs of its node's room.
type podNeed struct {
	key     resource.Key
	uid     types.UID
	created time.Time
	size    int
	// started is set once the node has reported the pod, held once it was sent the pod, or had it when it connected.
	started, held bool
	// deleting is set once the pod is being deleted.
	deleting bool
	// unknown is set if the pod has more references than are kept.
	unknown bool
}

// withheld says why a pod is withheld from its node. The node keeps what it has of it.
type withheld int

const (
	withheldNot withheld = iota
	// withheldWaiting: the node does not have the pod, which waits for room.
	withheldWaiting
	// withheldChange: the node has the pod. Its changes wait, since the pods of its namespace have grown too much.
	withheldChange
	// withheldReferences: the pod names too many ConfigMaps and Secrets.
	withheldReferences
)

func (w withheld) String() string {
	return [...]string{"", "room", "change", "references"}[w]
}

// admitted reports whether the pod has its room.
func (p podNeed) admitted() bool { return p.started || p.held }

// withholdPods decides which pods of a node are withheld. It decides from what the API server has of them, so that
// every cloudcore decides the same, also after a restart. Only what a node holds and has not reported yet is known to
// the cloudcore alone that the node is connected to. Nothing takes a pod from a node:
//
//   - A pod that has started, or that its node holds, has its room. If such pods grow beyond the limit, the changes of
//     those in namespaces that have more than an equal share wait: all changes, or a tenant could have pods grow in
//     turn.
//   - Any other pod gets what its namespace has for itself, and else what is left, the oldest first. One that is being
//     deleted takes no room.
func withholdPods(pods map[types.UID]podNeed, own, shared int) map[types.UID]withheld {
	out := map[types.UID]withheld{}
	taken := map[string]int{}
	var waiting []podNeed
	for uid, p := range pods {
		switch {
		case p.admitted():
			taken[p.key.Namespace] += p.size
		case p.deleting:
			out[uid] = withheldWaiting // its node is sent its deletion all the same
		case !p.unknown:
			waiting = append(waiting, p)
		}
		if p.unknown {
			out[uid] = withheldReferences
		}
	}
	beyond := map[string]int{}
	left := shared
	for namespace, n := range taken {
		beyond[namespace] = max(n-own, 0)
		left -= beyond[namespace]
	}
	if share, enough := equalShare(slices.Collect(maps.Values(beyond)), shared); !enough {
		for uid, p := range pods {
			if p.admitted() && beyond[p.key.Namespace] > share && !p.unknown {
				out[uid] = withheldChange
			}
		}
	}
	slices.SortFunc(waiting, func(a, b podNeed) int {
		return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.uid, b.uid))
	})
	for _, p := range waiting {
		have := taken[p.key.Namespace]
		need := max(have+p.size-own, 0) - max(have-own, 0)
		if need > 0 && need > left {
			out[p.uid] = withheldWaiting
			continue
		}
		taken[p.key.Namespace] += p.size
		left -= need
	}
	return out
}

// equalShare divides an amount: whoever needs less than an equal share leaves the rest to the others. enough is set if
// all get what they need; otherwise nobody is to have more than share.
func equalShare(needs []int, amount int) (share int, enough bool) {
	slices.Sort(needs)
	for i, need := range needs {
		if share = amount / (len(needs) - i); need > share {
			return share, false
		}
		amount -= need
	}
	return share, true
}

// podRoom knows which pods are withheld from their nodes. It follows the events of the pod cache. Nodes that are edge
// nodes no more stay until their pods are deleted, of which there are events for all nodes.
type podRoom struct {
	own, shared int

	mu sync.Mutex
	// deciding is set once the cache of pods is filled: until then each pod would be decided about many times.
	deciding bool
	nodes    map[string]*nodeRoom
}

type nodeRoom struct {
	pods     map[types.UID]podNeed
	total    int // of the sizes
	unknown  int // pods
	withheld map[types.UID]withheld
}

func newPodRoom() *podRoom {
	return &podRoom{own: ownPodBytes, shared: sharedPodBytes, nodes: map[string]*nodeRoom{}}
}

// start decides about the pods that are there. No node may be connected before.
func (r *podRoom) start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deciding = true
	for _, n := range r.nodes {
		n.decide(r)
	}
}

// changed takes an event of the pod cache; sameContent is set if nothing but the status differs. It returns the pods
// that are not withheld any more, the oldest first, and those that are now, or for another reason.
func (r *podRoom) changed(old, now *v1.Pod, sameContent bool) (released, withheld []podNeed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old != nil && (now == nil || now.UID != old.UID) {
		if n := r.nodes[old.Spec.NodeName]; n != nil {
			n.remove(old.UID)
			released, withheld = n.decide(r)
			if len(n.pods) == 0 {
				delete(r.nodes, old.Spec.NodeName)
			}
		}
	}
	if now == nil || now.Spec.NodeName == "" {
		return released, withheld
	}
	n := r.nodes[now.Spec.NodeName]
	if n == nil {
		n = &nodeRoom{pods: map[types.UID]podNeed{}}
		r.nodes[now.Spec.NodeName] = n
	}
	if n.put(now, sameContent) {
		more, and := n.decide(r)
		released, withheld = append(released, more...), append(withheld, and...)
	}
	return released, withheld
}

func (n *nodeRoom) remove(uid types.UID) {
	p, ok := n.pods[uid]
	if !ok {
		return
	}
	delete(n.pods, uid)
	n.total -= p.size
	if p.unknown {
		n.unknown--
	}
}

// put stores what a pod needs, and reports whether that changed.
func (n *nodeRoom) put(pod *v1.Pod, sameContent bool) (changed bool) {
	before, ok := n.pods[pod.UID]
	p := podNeed{
		key:      podKey(pod),
		uid:      pod.UID,
		created:  pod.CreationTimestamp.Time,
		size:     before.size,
		started:  pod.Status.StartTime != nil,
		held:     before.held,
		deleting: pod.DeletionTimestamp != nil,
		unknown:  lacksReferences(pod),
	}
	if !ok || !sameContent {
		p.size = sizeOf(pod)
	}
	if ok && p == before {
		return false
	}
	n.remove(pod.UID)
	n.pods[p.uid] = p
	n.total += p.size
	if p.unknown {
		n.unknown++
	}
	return true
}

// decide decides again. It returns what changed, the oldest first.
func (n *nodeRoom) decide(r *podRoom) (released, withheld []podNeed) {
	if !r.deciding {
		return nil, nil
	}
	before := n.withheld
	n.withheld = nil
	if n.total > r.shared || n.unknown > 0 { // on few nodes
		n.withheld = withholdPods(n.pods, r.own, r.shared)
	}
	for uid := range before {
		if p, ok := n.pods[uid]; ok && n.withheld[uid] == withheldNot {
			released = append(released, p)
		}
	}
	for uid, why := range n.withheld {
		if before[uid] != why {
			withheld = append(withheld, n.pods[uid])
		}
	}
	slices.SortFunc(released, func(a, b podNeed) int {
		return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.uid, b.uid))
	})
	return released, withheld
}

// holds records that a node holds pods, or is about to.
func (r *podRoom) holds(node string, uids ...types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[node]
	if n == nil {
		return
	}
	decide := false
	for _, uid := range uids {
		if p, ok := n.pods[uid]; ok && !p.held {
			p.held = true
			n.pods[uid] = p
			decide = decide || n.withheld[uid] == withheldWaiting
		}
	}
	if decide {
		n.decide(r) // it releases nothing but what the node holds
	}
}

// admitted reports whether a node has reported a pod, or holds it.
func (r *podRoom) admitted(node string, uid types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[node]
	return n != nil && n.pods[uid].admitted()
}

// of returns why a pod is withheld from its node.
func (r *podRoom) of(node string, uid types.UID) withheld {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.nodes[node]; n != nil {
		return n.withheld[uid]
	}
	return withheldNot
}

// withheldOn lists the pods that are withheld from a node.
func (r *podRoom) withheldOn(node string) (pods []podNeed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.nodes[node]; n != nil {
		for uid := range n.withheld {
			pods = append(pods, n.pods[uid])
		}
	}
	return pods
}

// count counts the withheld pods of all nodes.
func (r *podRoom) count() map[withheld]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	count := map[withheld]int{}
	for _, n := range r.nodes {
		for _, why := range n.withheld {
			count[why]++
		}
	}
	return count
}
