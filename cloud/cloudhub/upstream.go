package cloudhub

import (
	"context"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Upstream is told of nodes that come and go, and carries out what they ask for.
type Upstream interface {
	// Connected is called after a node's session began, with the protocol of the link. An edge of ours is told from
	// another by its prefix "edgecore/". It does not block: until it returns, nothing of the node is read, and nothing
	// sent to it.
	Connected(ctx context.Context, node, protocol string)
	// Disconnected is called after a node's session ended, with the reason.
	Disconnected(node, reason string)
	// Inventoried is called for each inventory of an edge of ours, before it is answered, with its entries of pods. It
	// returns the keys, as in wire.Held, of the pods whose status the node is to report again. It answers from memory
	// and does not block: until it returns, nothing else of the node is read.
	Inventoried(ctx context.Context, node string, pods []wire.Held) (report []string)
	// Heartbeat renews the node's lease. It is called every 10 to 20 s for a node, by how many there are, when that was
	// agreed with the edge, and only while signs of life come from it; after an error, sooner.
	Heartbeat(ctx context.Context, node string) error
	// Handle carries out a request, whose resource is in the form that edges use, and makes the answer; nil is no
	// answer. There is one call at a time for a node and object, many beside each other.
	Handle(ctx context.Context, node string, m *model.Message) *model.Message
}
