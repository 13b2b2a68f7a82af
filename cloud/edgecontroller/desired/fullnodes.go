package desired

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/lru"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/keyqueue"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/nodeevent"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/sessions"
)

// fullNodeNamespaces is how many namespaces an event about a full node names.
const fullNodeNamespaces = 3

// fullNodes records events about nodes that are connected here and have no room for all of their pods. They name the
// namespaces that take most: their tenants must not be named to each other, so the pods' own events do not.
type fullNodes struct {
	keyqueue.Queue
	asNode   kubernetes.Interface
	sessions *sessions.Sessions
	room     *podRoom
	notices  *podNotices
	recent   *lru.Cache // of names of nodes; the value is when the event was recorded
}

func newFullNodes(asNode kubernetes.Interface, sessions *sessions.Sessions, notices *podNotices) *fullNodes {
	f := &fullNodes{
		asNode:   asNode,
		sessions: sessions,
		room:     notices.room,
		notices:  notices,
		recent:   lru.New(noticesMax),
	}
	f.Queue = keyqueue.New("node", f.sync, "Event about a node without room for its pods not recorded")
	return f
}

func (f *fullNodes) sync(ctx context.Context, node string) error {
	usage := f.room.usage(node)
	now := time.Now()
	at, ok := f.recent.Get(node)
	if !f.sessions.ConnectedHere(node) || usage.withheld == 0 || ok && now.Sub(at.(time.Time)) < noticeRepeat {
		return nil
	}
	if !f.notices.rate.AllowN(now, 1) {
		f.Keys.AddAfter(node, noticeWait)
		return nil
	}
	f.recent.Add(node, now)
	ctx, cancel := context.WithTimeout(impersonate.WithNode(ctx, node), keyqueue.Timeout)
	defer cancel()
	nodeevent.Record(ctx, f.asNode, node, "NoRoomForPods", usage.message())
	return nil
}

// roomUsage says what the pods of a node take.
type roomUsage struct {
	own, shared int
	// withheld is the number of pods that wait, or whose changes do.
	withheld   int
	namespaces []namespaceUsage
}

// namespaceUsage is what the pods of a namespace take on a node: bytes of those that have their room, and waiting ones.
type namespaceUsage struct {
	namespace            string
	pods, bytes, waiting int
}

// message is the text of the event about the node.
func (u roomUsage) message() string {
	return fmt.Sprintf("%d pods, or changes of pods, are not sent to this node: its pods may have %d MiB together, "+
		"and %d MiB of each namespace besides. Most is taken by %s. Delete pods there, also those that have ended, or "+
		"limit them with a ResourceQuota (count/pods)", u.withheld, u.shared>>20, u.own>>20, u.largest())
}

// largest names the namespaces that take most.
func (u roomUsage) largest() string {
	slices.SortFunc(u.namespaces, func(a, b namespaceUsage) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(b.waiting, a.waiting),
			cmp.Compare(a.namespace, b.namespace))
	})
	var texts []string
	for _, n := range u.namespaces[:min(len(u.namespaces), fullNodeNamespaces)] {
		texts = append(texts, fmt.Sprintf("namespace %s (%d pods with %d KiB, and %d that wait)", n.namespace, n.pods,
			n.bytes>>10, n.waiting))
	}
	return strings.Join(texts, ", ")
}

// usage returns what the pods of a node take.
func (r *podRoom) usage(node string) roomUsage {
	r.mu.Lock()
	defer r.mu.Unlock()
	u := roomUsage{own: r.own, shared: r.shared}
	n := r.nodes[node]
	if n == nil {
		return u
	}
	all := map[string]*namespaceUsage{}
	for uid, p := range n.pods {
		of := all[p.key.Namespace]
		if of == nil {
			of = &namespaceUsage{namespace: p.key.Namespace}
			all[p.key.Namespace] = of
		}
		switch why := n.why(r, uid, p.size); {
		case why == withheldWaiting:
			of.waiting++
			u.withheld++
		case why != withheldReferences:
			of.pods++
			of.bytes += p.size
		}
		if n.withheld[uid] == withheldChange {
			u.withheld++
		}
	}
	for _, of := range all {
		u.namespaces = append(u.namespaces, *of)
	}
	return u
}

// fullNodes counts the nodes whose pods do not all have room.
func (r *podRoom) fullNodes() (full int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.nodes {
		for uid, why := range n.withheld {
			if _, ok := n.pods[uid]; ok && why != withheldReferences {
				full++
				break
			}
		}
	}
	return full
}
