package cloudhub

import (
	"context"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Upstream learns of nodes that connect and disconnect, and carries out their requests.
type Upstream interface {
	// Connected is called after a node's session began, with the protocol of the link. For our edgecores it has the
	// prefix "edgecore/". It must not block: until it returns, nothing is read from the node or sent to it.
	Connected(ctx context.Context, node, protocol string)
	// Disconnected is called after a node's session ended, with the reason.
	Disconnected(node, reason string)
	// Inventoried is called for each inventory of our edgecores, before it is answered, with its pod entries. It
	// returns the keys, as in wire.Held, of the pods whose status the node must report again. It answers from memory
	// and must not block: until it returns, nothing else of the node is read.
	Inventoried(ctx context.Context, node string, pods []wire.Held) (report []string)
	// Heartbeat renews the node's lease. If this was agreed with the edge, it is called every 10 to 20 s, depending on
	// the number of nodes, while the node is heard; sooner after an error.
	Heartbeat(ctx context.Context, node string) error
	// Handle carries out a request, whose resource is in the form that edges use, and returns the answer; nil is no
	// answer. It runs one call at a time for a node and object, many in parallel otherwise; queries always in parallel.
	// A call that waits for long should call Pause first.
	Handle(ctx context.Context, node string, m *model.Message) *model.Message
}
