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

// inventoryWait is how long our edgecore may take to send its inventory before the hub sends it everything.
const inventoryWait = 30 * time.Second

// loadKnown loads what a peer that sends no inventory holds.
func (s *session) loadKnown() {
	if s.features.Inventory {
		s.hub.opts.Records.Forget(s.node) // recorded while another edgecore ran there
		return                            // it sends an inventory
	}
	held, err := s.hub.opts.Records.Held(s.ctx, s.node)
	if err != nil {
		s.closeLink(wire.CloseTryLater, fmt.Sprintf("cannot read what this node holds: %v", err))
		return
	}
	// Each connect sends the Node object: KubeEdge's edgecore, with an empty store, cannot register without it
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

// startWithout begins to send to an edgecore of ours that sent no inventory.
func (s *session) startWithout() {
	klog.InfoS("Node did not send its inventory; sending it all objects", "node", s.node, "waited", inventoryWait)
	s.start(nil, nil)
}

// inventoryReply is the answer to an inventory while it waits for the differences to be acknowledged.
type inventoryReply struct {
	inventory *model.Message // without its content, which would stay in memory
	report    []string       // pods whose status is to be reported again
}

// start begins to send, given what the peer holds. told is the inventory that said so.
func (s *session) start(held map[resource.Key]queue.State, told *inventoryReply) {
	desired := s.hub.opts.Downstream.Desired(s.node)
	if held == nil {
		held = map[resource.Key]queue.State{}
	}
	// Send what pods need before the pods.
	slices.SortStableFunc(desired, func(a, b Ref) int { return rank(a.Key) - rank(b.Key) })
	keys := make([]resource.Key, len(desired))
	for i, ref := range desired {
		keys[i] = ref.Key
		// Share Downstream's strings; the message's would keep the message in memory.
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
	s.ready, s.pendingInventory = true, told
	s.syncedNow()
	s.kick()
}

func rank(key resource.Key) int {
	if key.Type == resource.TypePod {
		return 1
	}
	return 0
}

// syncedNow answers the inventory once the peer has what it lacked. s.mu is held.
func (s *session) syncedNow() {
	if s.pendingInventory == nil || !s.queue.Synced() || s.ended {
		return
	}
	content, err := json.Marshal(wire.Synced{Synced: true, Report: s.pendingInventory.report})
	if err != nil { // a bool and strings always encode
		panic(err)
	}
	s.answers = append(s.answers, answer{m: s.pendingInventory.inventory.Respond(content)})
	s.pendingInventory = nil
	s.kick()
}
