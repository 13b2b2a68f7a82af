package desired

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// Limits of the pods of a node, in bytes of caches.ContentSize. A device has its pods in memory and in its store,
// whoever made them: also those that have ended, until they are deleted.
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
	// started is set if the node started the pod before it was deleted, as far as the API server knows. held is set
	// once the node was sent the pod, or had it when it connected; lost if it did not have it any more then.
	started, held, lost bool
	// deleting is set once the pod is being deleted.
	deleting bool
	// sent is the size of the version that the node has; 0 is unknown.
	sent int
	// unknown is set if the pod has more references than are kept.
	unknown bool
	// early is set if the pod cache had not got the pod when the room got to know it.
	early bool
}

// withheld says why a pod is withheld from its node. The node keeps what it has of it.
type withheld int

const (
	withheldNot withheld = iota
	// withheldWaiting: the node does not have the pod, which waits for room.
	withheldWaiting
	// withheldChange: the node has the pod. Changes that make it larger wait, since the pods of its namespace have
	// grown too much.
	withheldChange
	// withheldReferences: the pod names too many ConfigMaps and Secrets.
	withheldReferences
)

func (w withheld) String() string {
	return [...]string{"", "room", "change", "references"}[w]
}

// admitted reports whether the pod has its room.
func (p podNeed) admitted() bool { return p.started && !p.lost || p.held && !p.deleting }

// ending reports whether the pod is being deleted, and its node gets no more of it than it takes to end it, if room is
// scarce. Such a pod is never admitted: what its node holds, or reports to have started afterwards, is that little.
func (p podNeed) ending() bool { return p.deleting && !p.admitted() }

// startedBefore reports whether a pod started before it was deleted. Of a pod that started in the same second or later,
// its node may have got no more than its end.
func startedBefore(pod *v1.Pod) bool {
	at, deletion := pod.Status.StartTime, pod.DeletionTimestamp
	if at == nil || deletion == nil {
		return at != nil
	}
	var grace int64
	if pod.DeletionGracePeriodSeconds != nil {
		grace = *pod.DeletionGracePeriodSeconds
	}
	return at.Time.Before(deletion.Add(-time.Duration(grace) * time.Second))
}

// withholdPods decides which pods of a node are withheld. It decides from what the API server has of them, so that
// every cloudcore decides the same, also after a restart. Only what a node holds and has not reported yet, and what it
// has lost, is known to the cloudcore alone that the node is connected to. Nothing takes a pod from a node:
//
//   - A pod that has started, or that its node holds, has its room. If such pods grow beyond the limit, changes of
//     those in namespaces that have more than an equal share wait.
//   - Any other pod gets what its namespace has for itself, and else what is left: first the pods with which their
//     namespaces have no more than an equal share, so that nobody waits behind the queue of another; then the rest.
//     The oldest come first.
//   - One that is being deleted takes as much as it takes to end it. That is always sent.
func withholdPods(pods map[types.UID]podNeed, own, shared int) map[types.UID]withheld {
	out := map[types.UID]withheld{}
	taken := map[string]int{}
	namespaces := map[string]bool{}
	var waiting []podNeed
	for uid, p := range pods {
		switch {
		case p.admitted():
			taken[p.key.Namespace] += p.size
		case p.deleting:
			taken[p.key.Namespace] += min(p.size, endingBytes)
			out[uid] = withheldWaiting
		case !p.unknown:
			waiting = append(waiting, p)
			namespaces[p.key.Namespace] = true
		}
		if p.unknown {
			out[uid] = withheldReferences
		}
	}
	beyond := map[string]int{}
	left := shared
	for namespace, n := range taken {
		namespaces[namespace] = true
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
	slices.SortFunc(waiting, byAge)
	// grant gives room to the pods with which their namespaces have no more than most, and returns the others.
	grant := func(waiting []podNeed, most int) (rest []podNeed) {
		for _, p := range waiting {
			before := max(taken[p.key.Namespace]-own, 0)
			after := max(taken[p.key.Namespace]+p.size-own, 0)
			if need := after - before; need > 0 && (need > left || after > most) {
				rest = append(rest, p)
				continue
			}
			taken[p.key.Namespace] += p.size
			left -= after - before
		}
		return rest
	}
	waiting = grant(waiting, shared/max(len(namespaces), 1))
	for _, p := range grant(waiting, shared) {
		out[p.uid] = withheldWaiting
	}
	return out
}

// byAge orders pods, the oldest first.
func byAge(a, b podNeed) int {
	return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.uid, b.uid))
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

// Decisions about a node whose pods do not all fit are made by a worker: one costs milliseconds with thousands of pods.
const (
	// decideEvery is how long a decision about a node is good for at least, whatever changes meanwhile.
	decideEvery = 100 * time.Millisecond
	// A decision that took long is good for decideShare times as long, and for decideMost at most.
	decideShare = 20
	decideMost  = time.Second
)

// podRoom knows which pods are withheld from their nodes. It follows the events of the pod cache. Nodes that are no
// longer edge nodes stay until their pods are deleted: there are events of all nodes' pods.
//
// A node with room for all of its pods is decided about at once. On another one, a pod that is new or has grown waits
// for the next decision, which is about all changes since the last one. Pods to which the last decision gave room are
// sent meanwhile, but not while the next one is computed.
type podRoom struct {
	own, shared int
	// withhold is withholdPods.
	withhold func(pods map[types.UID]podNeed, own, shared int) map[types.UID]withheld

	mu sync.Mutex
	// deciding is set once the cache of pods is filled: until then each pod would be decided about many times.
	deciding bool
	nodes    map[string]*nodeRoom
}

type nodeRoom struct {
	pods     map[types.UID]podNeed
	total    int // of the sizes
	unknown  map[types.UID]bool
	withheld map[types.UID]withheld

	// decision is held while a decision is made. It is locked before podRoom.mu.
	decision sync.Mutex
	// undecided are the pods that the next decision is about, and inDecision those of the one that is computed now, nil
	// if none is.
	undecided, inDecision map[types.UID]bool
	// due is set while a decision is due. The next one is made at again or later.
	due   bool
	again time.Time
}

func newPodRoom() *podRoom {
	return &podRoom{
		own:      ownPodBytes,
		shared:   sharedPodBytes,
		withhold: withholdPods,
		nodes:    map[string]*nodeRoom{},
	}
}

func newNodeRoom() *nodeRoom {
	return &nodeRoom{
		pods:      map[types.UID]podNeed{},
		unknown:   map[types.UID]bool{},
		undecided: map[types.UID]bool{},
	}
}

// roomChange is what an event or a decision changes on a node.
type roomChange struct {
	// released are the pods that are not withheld any more, the oldest first. Of those whose changes are withheld now,
	// the node gets what they refer to.
	released []podNeed
	// withheld are those that are withheld now, or for another reason.
	withheld []podNeed
	// due are the nodes about which a decision is due, and how soon.
	due map[string]time.Duration
}

func (c *roomChange) add(more roomChange) {
	c.released, c.withheld = append(c.released, more.released...), append(c.withheld, more.withheld...)
}

// start decides about the pods that are there. No node may be connected before.
func (r *podRoom) start() {
	r.mu.Lock()
	r.deciding = true
	nodes := slices.Collect(maps.Keys(r.nodes))
	r.mu.Unlock()
	for _, node := range nodes {
		r.decide(node)
	}
}

// changed takes an event of the pod cache; sameContent is set if nothing but the status differs.
func (r *podRoom) changed(old, now *v1.Pod, sameContent bool) (change roomChange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old != nil && (now == nil || now.UID != old.UID) {
		if n := r.nodes[old.Spec.NodeName]; n != nil {
			r.dropFrom(old.Spec.NodeName, n, old.UID, &change)
		}
	}
	if now == nil || now.Spec.NodeName == "" {
		return change
	}
	n := r.nodes[now.Spec.NodeName]
	if n == nil {
		n = newNodeRoom()
		r.nodes[now.Spec.NodeName] = n
	}
	if n.setPod(now, sameContent, r.full) {
		r.decideSoon(now.Spec.NodeName, n, &change)
	}
	return change
}

// count takes a pod that is about to be sent, if its event has not come yet. early is set if the pod cache lacks it.
func (r *podRoom) count(node string, pod *v1.Pod, early bool) (change roomChange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[node]
	if n == nil {
		n = newNodeRoom()
		r.nodes[node] = n
	}
	if _, ok := n.pods[pod.UID]; ok {
		return change
	}
	n.setPod(pod, false, r.full)
	p := n.pods[pod.UID]
	p.early = early
	n.pods[pod.UID] = p
	r.decideSoon(node, n, &change)
	return change
}

// drop removes a pod of a node.
func (r *podRoom) drop(node string, uid types.UID) (change roomChange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.nodes[node]; n != nil {
		r.dropFrom(node, n, uid, &change)
	}
	return change
}

// dropFrom is drop; mu is held.
func (r *podRoom) dropFrom(node string, n *nodeRoom, uid types.UID, change *roomChange) {
	if n.remove(uid) {
		r.decideSoon(node, n, change)
	}
	if len(n.pods) == 0 {
		delete(r.nodes, node)
	}
}

// remove reports whether the node had the pod.
func (n *nodeRoom) remove(uid types.UID) bool {
	p, ok := n.pods[uid]
	if !ok {
		return false
	}
	delete(n.pods, uid)
	delete(n.undecided, uid)
	delete(n.unknown, uid)
	n.total -= p.size
	return true
}

// setPod stores what a pod needs, and reports whether that changed.
func (n *nodeRoom) setPod(pod *v1.Pod, sameContent bool, full func(*nodeRoom) bool) (changed bool) {
	before, ok := n.pods[pod.UID]
	p := podNeed{
		key:      caches.PodKey(pod),
		uid:      pod.UID,
		created:  pod.CreationTimestamp.Time,
		size:     before.size,
		started:  startedBefore(pod),
		held:     before.held,
		lost:     before.lost,
		sent:     before.sent,
		deleting: pod.DeletionTimestamp != nil,
		unknown:  caches.LacksReferences(pod),
	}
	if !ok || !sameContent {
		p.size = caches.SizeOf(pod)
	}
	if ok && p == before {
		return false
	}
	undecided := n.undecided[p.uid]
	n.remove(pod.UID)
	n.pods[p.uid] = p
	n.total += p.size
	if p.unknown {
		n.unknown[p.uid] = true
	}
	if undecided || full(n) && (!ok || p.size > before.size || p.admitted() != before.admitted()) {
		n.undecided[p.uid] = true
	}
	return true
}

// full reports whether the pods of a node may not all have room.
func (r *podRoom) full(n *nodeRoom) bool { return n.total > r.shared }

// decideSoon decides about a node, or says in change that a decision is due. mu is held.
func (r *podRoom) decideSoon(node string, n *nodeRoom, change *roomChange) {
	switch {
	case !r.deciding:
	case !r.full(n):
		change.add(n.assignRoom())
	case !n.due:
		n.due = true
		if change.due == nil {
			change.due = map[string]time.Duration{}
		}
		change.due[node] = time.Until(n.again)
	}
}

// assignRoom gives all pods their room.
func (n *nodeRoom) assignRoom() roomChange {
	next := map[types.UID]withheld{}
	for uid := range n.unknown {
		next[uid] = withheldReferences
	}
	decided := n.undecided
	n.undecided = map[types.UID]bool{}
	return n.apply(next, decided)
}

// apply replaces the last decision about a node. decided are the pods that it was awaited for.
func (n *nodeRoom) apply(next map[types.UID]withheld, decided map[types.UID]bool) (change roomChange) {
	before := n.withheld
	n.withheld = next
	for uid := range n.withheld {
		if _, ok := n.pods[uid]; !ok {
			delete(n.withheld, uid) // it is gone meanwhile
		}
	}
	released := func(uid types.UID) {
		p, ok := n.pods[uid]
		waited := before[uid] == withheldWaiting || before[uid] == withheldNot // undecided
		if ok && (next[uid] == withheldNot || next[uid] == withheldChange && waited) {
			change.released = append(change.released, p)
		}
	}
	for uid := range before {
		released(uid)
	}
	for uid := range decided {
		if before[uid] == withheldNot {
			released(uid)
		}
	}
	for uid, why := range n.withheld {
		p := n.pods[uid]
		grown := decided[uid] && why == withheldChange && p.size > p.sent // it may be this change that is withheld
		if before[uid] != why || grown {
			change.withheld = append(change.withheld, p)
		}
	}
	slices.SortFunc(change.released, byAge)
	return change
}

// decide decides about a node.
func (r *podRoom) decide(node string) (change roomChange) {
	r.mu.Lock()
	n, deciding := r.nodes[node], r.deciding
	r.mu.Unlock()
	if n == nil || !deciding {
		return change
	}
	n.decision.Lock()
	defer n.decision.Unlock()
	r.mu.Lock()
	n.due = false
	if !r.full(n) {
		defer r.mu.Unlock()
		return n.assignRoom()
	}
	began, pods := time.Now(), maps.Clone(n.pods)
	n.inDecision, n.undecided = n.undecided, map[types.UID]bool{}
	r.mu.Unlock()

	next := r.withhold(pods, r.own, r.shared) // other nodes need not wait
	took := time.Since(began)

	r.mu.Lock()
	defer r.mu.Unlock()
	n.again = time.Now().Add(min(max(decideEvery, decideShare*took), decideMost))
	decided := n.inDecision
	n.inDecision = nil
	if !r.full(n) { // any more
		maps.Copy(n.undecided, decided)
		return n.assignRoom()
	}
	return n.apply(next, decided)
}

// connected begins a session of a node: what the node has is not known yet. Pods that the cache has never got are
// forgotten: they may be gone.
func (r *podRoom) connected(node string) roomChange {
	r.mu.Lock()
	if n := r.nodes[node]; n != nil {
		for uid, p := range n.pods {
			if p.early {
				n.remove(uid)
			}
		}
		if len(n.pods) == 0 {
			delete(r.nodes, node)
		}
	}
	r.mu.Unlock()
	return r.updateAll(node, func(p *podNeed) { p.lost, p.sent = false, 0 })
}

// inventoried records which pods a node has. What it does not have, it has lost or never had.
func (r *podRoom) inventoried(node string, has map[types.UID]bool) roomChange {
	return r.updateAll(node, func(p *podNeed) {
		p.held, p.lost, p.sent = has[p.uid], p.started && !has[p.uid], 0
	})
}

func (r *podRoom) updateAll(node string, update func(p *podNeed)) roomChange {
	r.mu.Lock()
	if n := r.nodes[node]; n != nil {
		for uid, p := range n.pods {
			update(&p)
			n.pods[uid] = p
		}
	}
	r.mu.Unlock()
	return r.decide(node)
}

// send reports why a pod of a size is withheld from its node. If it is not, it is about to be sent, and its node holds
// it from now on. A change of due is to be handled in any case.
func (r *podRoom) send(node string, uid types.UID, size int) (why withheld, change roomChange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[node]
	if n == nil {
		return withheldNot, change
	}
	p, ok := n.pods[uid]
	why = n.why(r, uid, size)
	if ok && why == withheldNot && n.inDecision != nil && (!p.admitted() || size > p.sent) {
		n.undecided[uid] = true // the decision that is computed now may give its room to another
		r.decideSoon(node, n, &change)
		why = n.why(r, uid, size)
	}
	if ok && why == withheldNot {
		p.held, p.lost, p.sent = true, false, size
		n.pods[uid] = p
	}
	return why, change
}

// setDelivered records that a node has a version of a pod of that size.
func (r *podRoom) setDelivered(node string, uid types.UID, size int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.nodes[node]; n != nil {
		if p, ok := n.pods[uid]; ok {
			p.sent = size
			n.pods[uid] = p
		}
	}
}

// why returns why a pod of a size is withheld: no change is that does not make it larger than the node has it.
func (n *nodeRoom) why(r *podRoom, uid types.UID, size int) withheld {
	p, why := n.pods[uid], n.withheld[uid]
	switch {
	case p.unknown:
		return withheldReferences
	case p.ending() && r.full(n):
		return withheldWaiting
	case why == withheldNot && (n.undecided[uid] || n.inDecision[uid]):
		if why = withheldWaiting; p.admitted() {
			why = withheldChange
		}
	}
	if why == withheldChange && size <= p.sent {
		return withheldNot
	}
	return why
}

// admitted reports whether a node has a pod that has its room.
func (r *podRoom) admitted(node string, uid types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[node]
	return n != nil && n.pods[uid].admitted()
}

// withheldWhy returns why a pod is withheld from its node.
func (r *podRoom) withheldWhy(node string, uid types.UID) withheld {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.nodes[node]; n != nil {
		return n.why(r, uid, n.pods[uid].size)
	}
	return withheldNot
}

// withheldOn lists the pods that are withheld from a node.
func (r *podRoom) withheldOn(node string) (pods []podNeed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.nodes[node]; n != nil {
		for uid := range n.withheld {
			if p, ok := n.pods[uid]; ok {
				pods = append(pods, p)
			}
		}
	}
	return pods
}

// withheldPods counts the withheld pods of all nodes.
func (r *podRoom) withheldPods() map[withheld]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	count := map[withheld]int{}
	for _, n := range r.nodes {
		for uid := range n.withheld {
			p, ok := n.pods[uid]
			if why := n.why(r, uid, p.size); ok && why != withheldNot {
				count[why]++
			}
		}
	}
	return count
}
