package node

import (
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/node/node"
	"github.com/edgecore-io/edgecore/edged/podstate/env"
)

// Self is what all parts may ask the node, and how they tell it that its status has changed. It is made before them.
type Self struct {
	*node.Addresses
	node.Signals
	name        string
	allocatable v1.ResourceList
}

// NewSelf returns the node of a name. ip and device say which addresses it has; see package node/node.
func NewSelf(name, ip, device string, allocatable v1.ResourceList) *Self {
	return &Self{
		Addresses:   node.NewAddresses(ip, device),
		Signals:     node.NewSignals(),
		name:        name,
		allocatable: allocatable,
	}
}

// Facts returns what pods may ask about the node.
func (s *Self) Facts() env.Facts {
	return env.Facts{HostIPs: s.IPs(), NodeName: s.name, Allocatable: s.allocatable}
}
