package fakes

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/pkg/resource"
)

// Hub is a hub that records its calls.
type Hub struct {
	Mu           sync.Mutex
	Marked       []string
	Statuses     []string // of pods that changed in nothing else
	disconnected []string
	Records      []cloudhub.Record
	// Asked are the pods whose status nodes are to report again; deaf: no node can be asked.
	Asked []string
	Deaf  bool
	// Next is what nodes are to be annotated with, and wait how long that has to wait.
	Next map[string]cloudhub.Record
	Wait time.Duration
}

// Recorded implements edgecontroller.Hub.
func (n *Hub) Recorded(_ string, r cloudhub.Record) {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	n.Records = append(n.Records, r)
}

// ToRecord implements edgecontroller.Hub.
func (n *Hub) ToRecord(node string, have cloudhub.Record) (cloudhub.Record, time.Duration, bool) {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	next := n.Next[node]
	return next, n.Wait, next.Known() && next.Instance != have.Instance
}

// Changed implements edgecontroller.Hub.
func (n *Hub) Changed(node string, key resource.Key) {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	n.Marked = append(n.Marked, node+" "+key.String())
}

// StatusChanged implements edgecontroller.Hub.
func (n *Hub) StatusChanged(node string, key resource.Key) {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	n.Statuses = append(n.Statuses, node+" "+key.String())
}

// Holds implements edgecontroller.Hub.
func (n *Hub) Holds(node string, key resource.Key, _ types.UID) { n.Changed(node, key) }

// RequestStatus implements edgecontroller.Hub.
func (n *Hub) RequestStatus(node string, key resource.Key, uid types.UID) bool {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	if !n.Deaf {
		n.Asked = append(n.Asked, node+" "+key.String()+" "+string(uid))
	}
	return !n.Deaf
}

// Disconnect implements edgecontroller.Hub.
func (n *Hub) Disconnect(node, reason string) {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	n.disconnected = append(n.disconnected, node+": "+reason)
}

// Take returns what was noted since the last call.
func (n *Hub) Take() []string {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	out := append(n.Marked, n.disconnected...)
	n.Marked, n.disconnected = nil, nil
	return out
}
