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

// Limits on the memory used to detect cloned devices.
const (
	// agentsKept is how many runs of the agent are kept for each node.
	agentsKept = 4
	// agentMemory is how long a run is kept after another one took its place.
	agentMemory = time.Hour
	// cloneRefused is how long a cloned device is refused while the other device is connected.
	cloneRefused = time.Minute
	// recordPeriod is the minimum time between two records of a node, across all cloudcores.
	recordPeriod = 5 * time.Second
)

// clones detects two devices that use the certificate of one node, for example after an SD card was copied.
//
// A device whose network fails reconnects with the same instance; a restarted agent has a new one. An instance that
// returns after another one took its place shows that both are running.
//
// The two may be connected to different cloudcores. So each cloudcore writes the newest run of a node into the Node
// (Record), and reads what others write. It draws conclusions only from an order that is certain: a connection that
// this process accepted after it read a record belongs to an agent that ran after the record was written. Arrivals here
// that are not written yet have no order relative to the records of others.
type clones struct {
	mu    sync.Mutex
	nodes map[string]nodeRuns
	// records holds what each device's Node says.
	records map[string]sighting
}

// sighting is a record, and when this process read or wrote it.
type sighting struct {
	record Record
	at     time.Time
}

// nodeRuns holds the runs of a node's agent.
type nodeRuns struct {
	// holder is the device that the certificates belong to (certs.HolderOf).
	holder string
	// runs lists the runs; the last one holds the node's place.
	runs []agentRun
}

// agentRun is one run of a node's agent.
type agentRun struct {
	instance wire.Instance
	// at is when the run took the node's place, or when another run was last seen to have replaced it.
	at time.Time
	// until is when the run is let in again after it was found to be a clone; zero otherwise.
	until time.Time
	// remote is set for a run that took the place at another cloudcore.
	remote bool
	// recorded is set for a run that the Node has named.
	recorded bool
}

// finding is the verdict of clones on a connection. The zero value accepts it.
type finding struct {
	// cloned is set when two devices are found: at most once each time one of them replaces the other.
	cloned bool
	// refuse is set if the connection must be refused.
	refuse bool
	// late is set if the connection is of an earlier run than the one that holds the node's place.
	late bool
	// remote is set if the other device is connected to another cloudcore.
	remote bool
}

// arrive judges a connection of a node and remembers its instance. rival reports whether another instance of the node
// is connected here. arrive refuses only if rival is set or another cloudcore let an instance in last, so that a node
// always has a device. It keeps up to limit nodes.
func (c *clones) arrive(from caller, rival bool, limit int) finding {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept, known := c.nodes[from.node]
	if !known && !c.hasRoom(from.accepted, limit) {
		return finding{}
	}
	if !known || kept.holder != from.holder { // the device was replaced, so its runs say nothing about the new one
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

// hasRoom reports whether one more node may be kept. If there is no room, nodes without a recent run are dropped first.
func (c *clones) hasRoom(now time.Time, limit int) bool {
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

// forget drops what is known about a node.
func (c *clones) forget(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.nodes, node)
	delete(c.records, node)
}

// read records what a Node says. It reports whether another cloudcore has let in an instance other than the one that
// held the node's place.
func (c *clones) read(node string, r Record, now time.Time) (replaced bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !r.Known() || !r.Since.After(c.records[node].record.Since) {
		return false // outdated: from a stale cache, or from before etcd was restored
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
	if i == holder || i >= 0 && !runs[i].recorded { // an unrecorded run has been replaced here meanwhile
		runs[i].recorded = true
		return runs, false
	}
	if runs[holder].recorded {
		runs[holder].at = now
	} else { // which of the two came first is unknown: it may return as a new run
		runs = slices.Delete(runs, holder, holder+1)
	}
	runs = slices.DeleteFunc(runs, func(r agentRun) bool { return r.instance == instance })
	if len(runs) == agentsKept {
		runs = slices.Delete(runs, 0, 1)
	}
	return append(runs, agentRun{instance: instance, at: now, remote: true, recorded: true}), true
}

// next returns the record that replaces the Node's, and how long to wait before writing it; the zero Record if there is
// nothing to write. gone is set if another cloudcore has let in an instance other than the connected one.
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

// arrived decides about a connection. It returns the updated runs.
func arrived(runs []agentRun, instance wire.Instance, rival bool, accepted time.Time) ([]agentRun, finding) {
	if len(runs) == 0 {
		return []agentRun{{instance: instance, at: accepted}}, finding{}
	}
	holder := runs[len(runs)-1]
	switch {
	case holder.instance == instance:
		runs[len(runs)-1].remote = false // it may have been connected to another cloudcore before
		return runs, finding{}
	case accepted.Before(holder.at): // it waited in this process; its agent may have exited
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
	// holder is the device that the certificate belongs to.
	holder string
	remote string
	// accepted is when this process accepted the connection; connections are accepted in the order in which they began.
	accepted time.Time
}

// unique refuses a connection if another device with the same certificate is connected. The gate has already checked
// that the certificate is the node's.
func (h *Hub) unique(ctx context.Context, c caller) *refusal {
	if !c.instance.Known() {
		return nil // KubeEdge's edgecore, or an older version that does not send the header
	}
	rival, other := h.rival(c)
	found := h.clones.arrive(c, rival, 2*h.limit.nodes)
	if found.cloned {
		h.metrics.cloned.Inc()
		if other == "" {
			other = "an address that is not connected now"
			if found.remote {
				other = "an address that is connected to another cloudcore"
			}
		}
		h.reportCloned(ctx, c, other)
	}
	if !found.refuse {
		return nil
	}
	why := refuse(http.StatusConflict, "duplicate",
		"two devices use the certificate of this node, and the other one is "+
			"connected: join each under its own name (cloudcore gettoken --node NAME --replace)")
	if found.late { // an agent that restarted quickly may be at two cloudcores
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

// clonedPatience is the timeout for reporting cloned devices.
const clonedPatience = 10 * time.Second

// reportCloned reports that two devices use the certificate of one node. It limits how often this is logged.
func (h *Hub) reportCloned(ctx context.Context, c caller, other string) {
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

// instanceOf returns the session's run. ok is false if the session is ending or its edgecore sent no instance.
func (s *session) instanceOf() (i wire.Instance, ok bool) {
	if s == nil || s.ctx.Err() != nil {
		return i, false
	}
	conn, _ := s.conn.(identified)
	return conn.instance, conn.instance.Known()
}

// Recorded takes what the Node of a device says, whenever it changes. If another cloudcore has let in another run of
// the node's agent since, Recorded ends the session here: its agent has exited or its device is cloned. It does not
// block.
func (h *Hub) Recorded(node string, r Record) {
	if !h.clones.read(node, r, time.Now()) {
		return
	}
	s := h.session(node)
	if instance, ok := s.instanceOf(); ok && instance != r.Instance {
		s.replaced()
	}
}

// ToRecord returns what to write into a device's Node in place of have, and how long to wait before asking again; ok is
// false if there is nothing to write. It does not block.
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

// replaced ends a session that another cloudcore has replaced.
func (s *session) replaced() {
	s.closeLink(wire.CloseReplaced, fmt.Sprintf("a newer connection of %s, to another cloudcore, took over", s.node))
}
