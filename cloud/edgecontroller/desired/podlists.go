package desired

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/caches"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/lookups"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/podfacts"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// The pod cache may lag behind what a node got through another cloudcore before it connected here. Two mistakes would
// follow on the device: objects that a pod needs are removed because the cache does not know the pod, and a
// force-deleted pod is restarted because the cache still has it. So before the first such decision of a session,
// cloudcore asks the API server once which pods are bound to the node. What the node held when it connected is no newer
// than that list: with the list and the events that follow, every later decision of the session is made from memory.
//
// The cost: a node whose inventory is exactly what it must have costs no request. Any other session (KubeEdge's nodes
// send no inventory) costs one LIST of the pods of one node, which the API server answers from an index, at the first
// pod that the node does not hold or the first object that it must not have. More follow only while the cache is
// behind, at most one per listAge. The LIST replaces the GET of each deleted pod. Over all nodes, package lookups
// limits how many run at a time.

// listAge is how long a list of pods is reused while the cache is behind it.
const listAge = 2 * time.Second

// podLists holds the pod lists of the nodes connected here.
type podLists struct {
	caches  *caches.Caches
	lookups *lookups.Lookups

	mu    sync.Mutex
	nodes map[string]*podList
}

// podList is the API server's list of one node's pods in a session. podLists.mu guards all but taking.
type podList struct {
	links int
	// held are pods that the node has: sending a newer version of them needs no list.
	held map[types.UID]bool
	// taking is held while the API server is asked.
	taking sync.Mutex

	taken   time.Time // zero: not listed yet
	version uint64    // of the list; 0: cannot be compared
	// pods are the listed pods that were not deleted since; missing those of them that the cache has never had.
	pods    map[types.UID]bool
	missing map[types.UID]missingPod
}

// missingPod is what matters about a pod that is not in the cache yet.
type missingPod struct {
	key        resource.Key
	references []resource.Key
	unknown    bool // it has more references than are kept
	claims     bool // it uses a persistent volume
	links      bool // its containers have the services of its namespace in their environment
}

func newPodLists(caches *caches.Caches, lookups *lookups.Lookups) *podLists {
	return &podLists{caches: caches, lookups: lookups, nodes: map[string]*podList{}}
}

func (l *podLists) connected(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	links := 1
	if n := l.nodes[node]; n != nil {
		links += n.links
	}
	l.nodes[node] = &podList{links: links}
}

func (l *podLists) disconnected(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.nodes[node]; n != nil {
		if n.links--; n.links <= 0 {
			delete(l.nodes, node)
		}
	}
}

// inventoried records which of the cached pods a node holds.
func (l *podLists) inventoried(node string, held map[types.UID]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.nodes[node]; n != nil {
		n.held = held
	}
}

// changed handles an event of the pod cache.
func (l *podLists) changed(old, now *v1.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old != nil && (now == nil || now.UID != old.UID) {
		if n := l.nodes[old.Spec.NodeName]; n != nil {
			delete(n.held, old.UID)
			delete(n.pods, old.UID)
			delete(n.missing, old.UID)
		}
	}
	if now != nil {
		if n := l.nodes[now.Spec.NodeName]; n != nil {
			delete(n.missing, now.UID)
		}
	}
}

// verdict is what a session's list says about an answer from the cache.
type verdict int

const (
	listTrusted verdict = iota // the answer is correct
	listBehind                 // the cache lacks a listed pod that makes the answer wrong
	listDeleted                // the cache has a pod that was deleted
	listUnknown                // a list is needed from the API server
)

// aboutPod judges what the cache has under a pod's key; nil is nothing. For a node that is not connected here, the
// cache is trusted.
func (l *podLists) aboutPod(node string, key resource.Key, pod *v1.Pod) verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.nodes[node]
	switch {
	case n == nil && pod == nil:
		return listBehind
	case n == nil:
		return listTrusted
	case pod != nil && n.held[pod.UID]:
		return listTrusted
	case n.taken.IsZero():
		return listUnknown
	}
	for _, m := range n.missing {
		if m.key == key {
			return listBehind
		}
	}
	if pod == nil || pod.Spec.NodeName != node || n.pods[pod.UID] {
		return listTrusted
	}
	version, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
	switch {
	case err != nil || n.version == 0:
		return listUnknown
	case version > n.version: // the pod is newer than the list
		return listTrusted
	}
	return listDeleted
}

// aboutNeed judges that no cached pod of a node needs an object; needs reports which missing pods would. claims is set
// if a missing pod uses a persistent volume claim.
func (l *podLists) aboutNeed(node string, needs func(missingPod) bool) (v verdict, claims bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.nodes[node]
	switch {
	case n == nil:
		return listTrusted, false
	case n.taken.IsZero():
		return listUnknown, false
	}
	for _, m := range n.missing {
		if needs(m) {
			return listBehind, false
		}
		claims = claims || m.claims
	}
	return listTrusted, claims
}

// podOnNode returns the cached pod of a key, perhaps trimmed, if the node must have it, else nil. It asks the API
// server as described at podLists.
func (l *podLists) podOnNode(node string, key resource.Key) (*v1.Pod, error) {
	pod := l.caches.Pod(key.Namespace, key.Name)
	v := l.aboutPod(node, key, pod)
	if v == listUnknown {
		if err := l.takePodList(node); err != nil {
			return nil, err
		}
		// A pod that the cache had before the list was taken, and that the list lacks, is gone.
		if v = l.aboutPod(node, key, pod); v == listUnknown {
			v = listDeleted
		}
	}
	switch v {
	case listDeleted:
		return nil, nil
	case listBehind:
		var err error
		pod, err = lookups.Confirmed(l.lookups, key, l.lookups.Own.CoreV1().Pods(key.Namespace).Get)
		if pod == nil || err != nil {
			return nil, err
		}
		pod = caches.TrimIfLarge(pod)
	}
	if pod == nil || pod.Spec.NodeName != node {
		return nil, nil
	}
	return pod, nil
}

// errCacheStale means that the API server has a pod that needs an object, and the cache lacks that pod.
var errCacheStale = errors.New("the cache of pods is behind the API server")

// unneeded makes sure that no pod of a node needs an object: needed decides for cached pods, needs for others. claims
// is set if a pod outside the cache uses a persistent volume claim.
func (l *podLists) unneeded(
	node string, key resource.Key, needed func() bool, needs func(missingPod) bool,
) (is, claims bool, err error) {
	if needed() {
		return false, false, nil
	}
	v, claims := l.aboutNeed(node, needs)
	if v == listTrusted {
		return true, claims, nil
	}
	if err := l.takePodList(node); err != nil {
		return false, false, err
	}
	if needed() {
		return false, false, nil
	}
	if v, claims = l.aboutNeed(node, needs); v != listTrusted {
		return false, false, fmt.Errorf("%s for node %s: %w", key, node, errCacheStale)
	}
	return true, claims, nil
}

// takePodList asks the API server which pods a node has. It keeps a list younger than listAge, unless it cannot be
// compared.
func (l *podLists) takePodList(node string) error {
	l.mu.Lock()
	n := l.nodes[node]
	l.mu.Unlock()
	if n == nil {
		return fmt.Errorf("node %s is not connected here", node)
	}
	n.taking.Lock()
	defer n.taking.Unlock()
	l.mu.Lock()
	young := n.version != 0 && time.Since(n.taken) < listAge
	l.mu.Unlock()
	if young {
		return nil
	}
	began := time.Now()
	list, version, err := l.lookups.ListPods(node, l.largeBytes(node))
	if err != nil {
		return fmt.Errorf("ask the API server for the pods of node %s: %w", node, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n.taken, n.version = began, version
	n.pods, n.missing = map[types.UID]bool{}, map[types.UID]missingPod{}
	for _, pod := range list {
		cached := l.caches.Pod(pod.Namespace, pod.Name)
		if cached != nil && cached.UID == pod.UID {
			n.pods[cached.UID] = true // a string that is shared
			continue
		}
		n.pods[pod.UID] = true
		n.missing[pod.UID] = missingPod{
			key:        caches.PodKey(pod),
			references: podfacts.References(pod),
			unknown:    caches.LacksReferences(pod),
			claims:     podfacts.HasClaims([]*v1.Pod{pod}),
			links:      podfacts.LinksServices(pod),
		}
	}
	return nil
}

// largeBytes returns what the large pods of a node have together.
func (l *podLists) largeBytes(node string) (bytes int) {
	for _, pod := range l.caches.PodsOf(node) {
		if caches.IsTrimmed(pod) {
			bytes += caches.SizeOf(pod)
		}
	}
	return bytes
}
