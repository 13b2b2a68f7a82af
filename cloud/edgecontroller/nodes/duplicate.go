package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/keyqueue"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/nodeevent"
)

const (
	// duplicateClearAfter is how long no duplicate must be found before the condition becomes False. Two devices take
	// turns of a minute at the cloud, or of a few minutes if they wait longer between tries.
	duplicateClearAfter = 10 * time.Minute
	// duplicateRefresh is the age of the condition's time at which a new finding updates it.
	duplicateRefresh = 5 * time.Minute
	// duplicateMinConnected is how long a node must be connected before the condition may become False.
	duplicateMinConnected = 2 * time.Minute
	// duplicateEvents is the minimum time between two events of a node.
	duplicateEvents = 10 * time.Minute
)

// Duplicates maintains the condition DuplicateDevice of Nodes. Any cloudcore that finds two devices sets it to True.
// The cloudcore to which the node is connected sets it to False after a while without findings.
type Duplicates struct {
	Access
	keyqueue.Queue

	mu    sync.Mutex
	nodes map[string]*duplicate
}

// duplicate is what is known about one node with two devices.
type duplicate struct {
	message string
	// found is when this cloudcore last found two devices, seen when it last saw the condition's time change: other
	// cloudcores have other clocks.
	found, seen time.Time
	heartbeat   metav1.Time
	event       time.Time
}

func newDuplicates(a Access) *Duplicates {
	d := &Duplicates{Access: a, nodes: map[string]*duplicate{}}
	d.Queue = keyqueue.New("node", d.sync, "Condition DuplicateDevice of a node not changed; it is tried again")
	return d
}

// entryOf returns the entry of a node; mu is held.
func (d *Duplicates) entryOf(node string) *duplicate {
	if d.nodes[node] == nil {
		d.nodes[node] = &duplicate{}
	}
	return d.nodes[node]
}

func (d *Duplicates) forget(node string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.nodes, node)
}

// find records that two devices were found. It reports whether an event is due.
func (d *Duplicates) find(node, message string, now time.Time) (event bool) {
	if d.Caches.Node(node) == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	kept := d.entryOf(node)
	kept.found, kept.message = now, message
	event = kept.event.IsZero() || now.Sub(kept.event) >= duplicateEvents
	if event {
		kept.event = now
	}
	d.Keys.Add(node)
	return event
}

// connected schedules a check of a connected node's condition.
func (d *Duplicates) connected(node string) {
	if isDuplicate(duplicateOf(d.Caches.Node(node))) {
		d.Keys.AddAfter(node, duplicateMinConnected)
	}
}

// nodeChanged records what other cloudcores write.
func (d *Duplicates) nodeChanged(old, now *v1.Node) {
	before, after := duplicateOf(old), duplicateOf(now)
	if before == nil && after == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case isDuplicate(after):
		kept := d.entryOf(now.Name)
		if kept.heartbeat.Equal(&after.LastHeartbeatTime) {
			return
		}
		kept.heartbeat, kept.seen = after.LastHeartbeatTime, time.Now()
	case isDuplicate(before) && after != nil:
		delete(d.nodes, now.Name)
		return
	}
	d.Keys.Add(now.Name)
}

// duplicateOf returns the condition of a Node, or nil.
func duplicateOf(node *v1.Node) *v1.NodeCondition {
	if node == nil {
		return nil
	}
	i := slices.IndexFunc(node.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == marks.DuplicateDevice
	})
	if i < 0 {
		return nil
	}
	return &node.Status.Conditions[i]
}

func isDuplicate(c *v1.NodeCondition) bool { return c != nil && c.Status == v1.ConditionTrue }

// next decides what the condition must become; nil leaves it, and a time that is not 0 is when to check again. here is
// set if the node is connected to this cloudcore.
func (k duplicate) next(have *v1.NodeCondition, here bool, now time.Time) (
	want *v1.NodeCondition, again time.Duration) {
	last := k.seen
	if k.found.After(last) {
		last = k.found
	}
	quiet, is := now.Sub(last), isDuplicate(have)
	at := metav1.NewTime(now)
	want = &v1.NodeCondition{Type: marks.DuplicateDevice, LastHeartbeatTime: at, LastTransitionTime: at}
	switch {
	case !k.found.IsZero() && now.Sub(k.found) < duplicateClearAfter &&
		(!is || k.found.Sub(k.seen) >= duplicateRefresh):
		want.Status, want.Reason, want.Message = v1.ConditionTrue, "TwoDevices", k.message
		if is {
			want.LastTransitionTime = have.LastTransitionTime
		}
		return want, duplicateClearAfter
	case !is:
		return nil, 0
	case quiet < duplicateClearAfter:
		return nil, duplicateClearAfter - quiet
	case !here:
		return nil, 0 // unknown; checked when the node connects
	}
	want.Status, want.Reason = v1.ConditionFalse, "OneDevice"
	want.Message = "one device uses the certificate of the node"
	return want, 0
}

func (d *Duplicates) sync(ctx context.Context, name string) error {
	node := d.Caches.Node(name)
	if node == nil {
		return nil
	}
	d.mu.Lock()
	kept := duplicate{}
	if k := d.nodes[name]; k != nil {
		kept = *k
	}
	d.mu.Unlock()
	want, again := kept.next(duplicateOf(node), d.Sessions.ConnectedHere(name), time.Now())
	if again > 0 {
		d.Keys.AddAfter(name, again)
	}
	if want == nil {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID},
		"status":   map[string]any{"conditions": []*v1.NodeCondition{want}},
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(impersonate.WithNode(ctx, name), keyqueue.Timeout)
	defer cancel()
	_, err = d.AsNode.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patch the condition %s of node %s: %w", marks.DuplicateDevice, name, err)
	}
	return nil
}

// Duplicate reports that two devices use the certificate of a node: as a condition of the Node, and from time to time
// an event, both in the node's name. Errors are logged.
func (d *Duplicates) Duplicate(ctx context.Context, node, message string) {
	if !d.find(node, message, time.Now()) {
		return
	}
	ctx, cancel := context.WithTimeout(impersonate.WithNode(ctx, node), d.Timeout)
	defer cancel()
	nodeevent.Record(ctx, d.AsNode, node, string(marks.DuplicateDevice), message)
}
