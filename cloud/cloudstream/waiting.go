package cloudstream

import (
	"net/netip"
	"slices"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
)

// waitingNodes are connected nodes without a port, which get one in the order in which they came.
type waitingNodes []waitingNode

type waitingNode struct {
	name    string
	links   int
	from    netip.Addr
	streams cloudhub.Streams
}

func (w waitingNodes) index(name string) int {
	return slices.IndexFunc(w, func(n waitingNode) bool { return n.name == name })
}

// connected counts a session of a node.
func (w *waitingNodes) connected(name string, from netip.Addr, streams cloudhub.Streams) {
	i := w.index(name)
	if i < 0 {
		i = len(*w)
		*w = append(*w, waitingNode{name: name})
	}
	(*w)[i].links++
	(*w)[i].from, (*w)[i].streams = from, streams
}

// disconnected counts the end of one.
func (w *waitingNodes) disconnected(name string) {
	i := w.index(name)
	if i < 0 {
		return
	}
	if (*w)[i].links--; (*w)[i].links == 0 {
		*w = slices.Delete(*w, i, i+1)
	}
}

// first returns the node that has waited longest; "" is none.
func (w waitingNodes) first() string {
	if len(w) == 0 {
		return ""
	}
	return w[0].name
}

// remove removes a node, and returns how many sessions it has, and where the newest one comes from and its streams.
func (w *waitingNodes) remove(name string) (links int, from netip.Addr, streams cloudhub.Streams) {
	i := w.index(name)
	if i < 0 {
		return 0, from, nil
	}
	n := (*w)[i]
	*w = slices.Delete(*w, i, i+1)
	return n.links, n.from, n.streams
}
