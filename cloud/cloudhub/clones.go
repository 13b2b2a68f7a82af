package cloudhub

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/wire"
)

// Bounds of what is kept to notice cloned devices.
const (
	// agentsKept is how many runs of the agent are kept for each node.
	agentsKept = 4
	// agentMemory is how long a run is kept after another one took its place.
	agentMemory = time.Hour
	// cloneRefused is how long a cloned device is refused while the other one is connected.
	cloneRefused = time.Minute
	// recordPeriod is the least time between two records of a node, by all cloudcores.
	recordPeriod = 5 * time.Second
)

// clones notices two devices that have the certificate of one node, as a copied SD card makes them.
//
// A device whose network fails connects again with the same instance, and an agent that restarts has a new one. An
// instance that returns after another one took its place shows that both run at the same time.
//
// The two may be connected to different cloudcores. So each cloudcore writes who took a node's place last into the Node
// (Record), and takes from there what others write. It concludes something only from an order that is certain: a
// connection that this process accepted after it had read a record is of an agent that ran after the record was
// written. What arrived here and is not written yet has no order to what others write.
type clones struct {
	mu    sync.Mutex
	nodes map[string]nodeRuns
	// records holds what each device's Node says.
	records map[string]sighting
}

// sighting is a record, and when this process read it or wrote it.
type sighting struct {
	record Record
	at     time.Time
}

// nodeRuns are the runs of a node's agent.
type nodeRuns struct {
	// holder is the device that their certificates are of (certs.HolderOf).
	holder string
	// runs has the one that holds the node's place last.
	runs []agentRun
}

// agentRun is one run of a node's agent.
type agentRun struct {
	instance wire.Instance
	// at is when it took the node's place; of a run that does not hold it any more, when that was noticed last.
	at time.Time
	// until is when it is let in again, after it was found to be one of two; zero if it was not.
	until time.Time
	// remote is set for a run that took the place at another cloudcore.
	remote bool
	// recorded is set for a run that the Node has named.
	recorded bool
}

// finding is what clones says of a connection. The zero value says nothing against it.
type finding struct {
	// cloned is set when two devices are found: at most once for each time that one of them takes the place of the
	// other.
	cloned bool
	// refuse is set for a connection that is to be turned down.
	refuse bool
	// late is set for a connection of an earlier run than the one that holds the node's place.
	late bool
	// remote is set if the other device is connected to another cloudcore.
	remote bool
}

// arrive judges a connection of a node, and keeps its instance. rival says whether another instance of the node is
// connected here: only then, or if another cloudcore let one in last, the connection is refused, so that a node always
// has a device. Up to limit nodes are kept.
func (c *clones) arrive(from caller, rival bool, limit int) finding {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept, known := c.nodes[from.node]
	if !known && !c.room(from.accepted, limit) {
		return finding{}
	}
	if !known || kept.holder != from.holder { // of a device that took the other one's place, no other one can come
		kept = nodeRuns{holder: from.holder}
		if seen, ok := c.records[from.node]; ok {
			kept.runs = []agentRun{{instance: seen.record.Instance, at: seen.at, remote: true, recorded: true}}
		}
	}
	var found finding
	kept.runs, found = arrived(kept.runs, from.instance, rival, from.accepted)
	if c.nodes == nil {
		c.nodes = map[string]nodeRuns{}
	}
	c.nodes[from.node] = kept
	return found
}

// room reports whether one more node may be kept. If there is no room, nodes without a recent run are dropped first.
func (c *clones) room(now time.Time, limit int) bool {
	if len(c.nodes) < limit {
		return true
	}
	for node, kept := range c.nodes {
		if now.Sub(kept.runs[len(kept.runs)-1].at) > agentMemory {
			delete(c.nodes, node)
		}
	}
	return len(c.nodes) < limit
}

// forget drops what is kept of a node.
func (c *clones) forget(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.nodes, node)
	delete(c.records, node)
}

// read takes note of what a Node says. It reports whether another cloudcore has let another instance in than the one
// that held the node's place.
func (c *clones) read(node string, r Record, now time.Time) (replaced bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !r.Known() || !r.Since.After(c.records[node].record.Since) {
		return false // an old one, from a cache that is behind or from before a restore of etcd
	}
	if c.records == nil {
		c.records = map[string]sighting{}
	}
	c.records[node] = sighting{r, now}
	kept, known := c.nodes[node]
	if !known {
		return false
	}
	kept.runs, replaced = recorded(kept.runs, r.Instance, now)
	c.nodes[node] = kept
	return replaced
}

// recorded returns the runs after the Node named an instance.
func recorded(runs []agentRun, instance wire.Instance, now time.Time) (after []agentRun, replaced bool) {
	i := slices.IndexFunc(runs, func(r agentRun) bool { return r.instance == instance })
	holder := len(runs) - 1
	if i == holder || i >= 0 && !runs[i].recorded { // of the latter, another one took the place here meanwhile
		runs[i].recorded = true
		return runs, false
	}
	if runs[holder].recorded {
		runs[holder].at = now
	} else { // which of the two came first is not known: it may come again as a new one
		runs = slices.Delete(runs, holder, holder+1)
	}
	runs = slices.DeleteFunc(runs, func(r agentRun) bool { return r.instance == instance })
	if len(runs) == agentsKept {
		runs = slices.Delete(runs, 0, 1)
	}
	return append(runs, agentRun{instance: instance, at: now, remote: true, recorded: true}), true
}

// next returns the record that is to replace what a Node says, and how long to wait before; the zero Record if there is
// nothing to write. gone is set if another cloudcore has let another instance in than the one that is connected here.
func (c *clones) next(node string, instance wire.Instance, have Record, now time.Time) (
	next Record, wait time.Duration, gone bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	runs := c.nodes[node].runs
	if len(runs) == 0 {
		return Record{}, 0, false
	}
	holder := runs[len(runs)-1]
	if holder.instance != instance {
		return Record{}, 0, holder.remote
	}
	if have.Instance == instance {
		return Record{}, 0, false
	}
	seen, newest := c.records[node], have
	if seen.record.Since.After(newest.Since) {
		newest = seen.record
	}
	if !seen.at.IsZero() {
		wait = max(0, recordPeriod-now.Sub(seen.at))
	}
	return newest.next(instance, now), wait, false
}

// arrived decides about a connection. It returns the runs as they are after it.
func arrived(runs []agentRun, instance wire.Instance, rival bool, accepted time.Time) ([]agentRun, finding) {
	if len(runs) == 0 {
		return []agentRun{{instance: instance, at: accepted}}, finding{}
	}
	holder := runs[len(runs)-1]
	switch {
	case holder.instance == instance:
		runs[len(runs)-1].remote = false // it may have been connected elsewhere before
		return runs, finding{}
	case accepted.Before(holder.at): // it waited on its way through this process; its agent may be gone
		return runs, finding{refuse: true, late: true}
	}
	runs = slices.DeleteFunc(runs, func(r agentRun) bool {
		return r.instance != holder.instance && accepted.Sub(r.at) > agentMemory
	})
	i := slices.IndexFunc(runs, func(r agentRun) bool { return r.instance == instance })
	found := finding{}
	if i >= 0 {
		again := &runs[i]
		found.cloned, found.remote = again.until.IsZero(), holder.remote
		if found.cloned {
			again.until = accepted.Add(cloneRefused)
		}
		again.at = accepted
		if found.refuse = (rival || holder.remote) && accepted.Before(again.until); found.refuse {
			return runs, found
		}
		runs = slices.Delete(runs, i, i+1)
	}
	runs[len(runs)-1].at = accepted
	if len(runs) == agentsKept {
		runs = slices.Delete(runs, 0, 1)
	}
	return append(runs, agentRun{instance: instance, at: accepted}), found
}

// caller is a connection of a node that may become a session.
type caller struct {
	node     string
	instance wire.Instance
	// holder is the device that the certificate is of.
	holder string
	remote string
	// accepted is when this process took it from the network: connections are taken in the order in which they began.
	accepted time.Time
}

// unique turns a connection down if another device with the same certificate is connected. A gate has let it in: the
// certificate is the node's.
func (h *Hub) unique(ctx context.Context, c caller) *refusal {
	if !c.instance.Known() {
		return nil // an edge of KubeEdge, or one from before there was the header
	}
	rival, other := h.rival(c)
	found := h.clones.arrive(c, rival, 2*h.opts.NodeLimit)
	if found.cloned {
		h.metrics.cloned.Inc()
		if other == "" {
			other = "an address that is not connected now"
			if found.remote {
				other = "an address that is connected to another cloudcore"
			}
		}
		h.tellCloned(ctx, c, other)
	}
	if !found.refuse {
		return nil
	}
	why := refuse(http.StatusConflict, "duplicate",
		"two devices use the certificate of this node, and the other one is "+
			"connected: join each under its own name (cloudcore gettoken --node NAME --replace)")
	if found.late { // which an agent that has started twice in a moment may be, at two cloudcores
		why = refuse(http.StatusServiceUnavailable, "late", "another run of the node's agent has connected since this "+
			"connection began; try again")
	}
	h.metrics.refused.WithLabelValues(why.cause).Inc()
	return why
}

// rival reports whether another instance of the node is connected, and from where.
func (h *Hub) rival(c caller) (connected bool, remote string) {
	s := h.session(c.node)
	if s == nil || s.ctx.Err() != nil {
		return false, ""
	}
	if conn, ok := s.conn.(identified); ok && conn.instance == c.instance {
		return false, ""
	}
	return true, s.conn.RemoteAddr().String()
}

// clonedPatience is how long telling of cloned devices may take.
const clonedPatience = 10 * time.Second

// tellCloned says that two devices use the certificate of one node. The log has it once in a while.
func (h *Hub) tellCloned(ctx context.Context, c caller, other string) {
	message :=
		fmt.Sprintf("Two devices use the certificate of node %s, from %s and from %s, as after copying an SD card. "+
			"Run \"cloudcore gettoken --node %s --replace\", join one of them with that token, "+
			"and join the other one under its own name", c.node, c.remote, other, c.node)
	if h.refused.shouldLog(c.node+" cloned", c.accepted) {
		klog.InfoS("Cloned device", "node", c.node, "remote", c.remote, "other", other, "message", message)
	}
	if h.opts.Duplicate == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, clonedPatience)
	defer cancel()
	h.opts.Duplicate(ctx, c.node, message)
}

// instanceOf returns the run that a session is of, if the session goes on and its edge said so.
func (s *session) instanceOf() (i wire.Instance, ok bool) {
	if s == nil || s.ctx.Err() != nil {
		return i, false
	}
	conn, _ := s.conn.(identified)
	return conn.instance, conn.instance.Known()
}

// Recorded is told what the Node of a device says, whenever that changes. If another cloudcore has let another run of
// the node's agent in since, the session here ends: it is the one of an agent that has ended, or of a cloned device.
// It does not block.
func (h *Hub) Recorded(node string, r Record) {
	if !h.clones.read(node, r, time.Now()) {
		return
	}
	s := h.session(node)
	if instance, ok := s.instanceOf(); ok && instance != r.Instance {
		s.replaced()
	}
}

// ToRecord returns what is to be written into the Node of a device instead of what it has, and how long to wait before
// asking again; ok is false if there is nothing to write. It does not block.
func (h *Hub) ToRecord(node string, have Record) (next Record, wait time.Duration, ok bool) {
	s := h.session(node)
	instance, ok := s.instanceOf()
	if !ok {
		return Record{}, 0, false
	}
	next, wait, gone := h.clones.next(node, instance, have, time.Now())
	if gone {
		s.replaced()
	}
	return next, wait, next.Known()
}

// replaced ends a session in favour of one at another cloudcore.
func (s *session) replaced() {
	s.end(wire.CloseReplaced, fmt.Sprintf("a newer connection of %s, to another cloudcore, took over", s.node))
}
