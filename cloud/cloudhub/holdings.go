package cloudhub

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudhub/queue"
	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// inventoryWait is how long an edge of ours may take to tell what it holds, before it gets everything.
const inventoryWait = 30 * time.Second

// loadKnown finds out what a peer holds that does not tell.
func (s *session) loadKnown() {
	if s.features.Inventory {
		s.hub.opts.Records.Forget(s.node) // of the time when another edgecore ran there
		return                            // it tells itself
	}
	held, err := s.hub.opts.Records.Held(s.ctx, s.node)
	if err != nil {
		s.end(wire.CloseTryLater, fmt.Sprintf("cannot read what this node holds: %v", err))
		return
	}
	// Nodes get their Node object at each connect: KubeEdge's, with an empty store, cannot register without it
	// (docs/wire.md, Registration).
	key := nodeKey(s.node)
	if h, ok := held[key]; ok {
		held[key] = queue.State{UID: h.UID}
	}
	s.start(held, nil)
}

func nodeKey(node string) resource.Key {
	return resource.Key{Namespace: resource.NullNamespace, Type: resource.TypeNode, Name: node}
}

// startWithout begins to send to an edge of ours that did not tell what it holds.
func (s *session) startWithout() {
	klog.InfoS("Node did not tell what it holds; it gets everything", "node", s.node, "waited", inventoryWait)
	s.start(nil, nil)
}

// inventoryReply is the answer to an inventory while it waits for the differences to be acknowledged.
type inventoryReply struct {
	inventory *model.Message // without its content, which would stay in memory
	report    []string       // pods whose status is to be reported again
}

// start begins to send: the peer holds this. told is the inventory that said so.
func (s *session) start(held map[resource.Key]queue.State, told *inventoryReply) {
	desired := s.hub.opts.Downstream.Desired(s.node)
	if held == nil {
		held = map[resource.Key]queue.State{}
	}
	// What pods need comes before them.
	slices.SortStableFunc(desired, func(a, b Ref) int { return rank(a.Key) - rank(b.Key) })
	keys := make([]resource.Key, len(desired))
	for i, ref := range desired {
		keys[i] = ref.Key
		// The strings of Downstream's are shared by all; those of the peer's message would keep it in memory.
		if h, ok := held[ref.Key]; ok && h.UID == ref.UID {
			delete(held, ref.Key)
			h.UID = ref.UID
			held[ref.Key] = h
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if told == nil && s.ready {
		return
	}
	s.queue.Reset(held, keys)
	s.ready, s.inventory = true, told
	s.syncedNow()
	s.kick()
}

func rank(key resource.Key) int {
	if key.Type == resource.TypePod {
		return 1
	}
	return 0
}

// syncedNow answers the inventory when the peer has what it lacked. s.mu is held.
func (s *session) syncedNow() {
	if s.inventory == nil || !s.queue.Synced() || s.ended {
		return
	}
	content, err := json.Marshal(wire.Synced{Synced: true, Report: s.inventory.report})
	if err != nil { // a bool and strings always encode
		panic(err)
	}
	s.answers = append(s.answers, answer{m: s.inventory.inventory.Respond(content)})
	s.inventory = nil
	s.kick()
}
