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
)

// clones notices two devices that have the certificate of one node, as a copied SD card makes them.
//
// A device whose network fails connects again with the same instance, and an agent that restarts has a new one. An
// instance that returns after another one took its place shows that both run at the same time.
type clones struct {
	mu sync.Mutex
	// nodes holds the runs of each node's agent. The last of each list holds the node's place.
	nodes map[string][]agentRun
}

// agentRun is one run of a node's agent.
type agentRun struct {
	instance wire.Instance
	// at is when it took the node's place; of a run that does not hold it any more, when that was noticed last.
	at time.Time
	// until is when it is let in again, after it was found to be one of two; zero if it was not.
	until time.Time
}

// finding is what clones says of a connection. The zero value says nothing against it.
type finding struct {
	// cloned is set when two devices are found: at most once for each time that one of them takes the place of the other.
	cloned bool
	// refuse is set for a connection that is to be turned down.
	refuse bool
	// late is set for a connection of an earlier run than the one that holds the node's place.
	late bool
}

// arrive judges a connection of a node that was accepted at the given time, and keeps its instance. rival says whether
// another instance of the node is connected: only then the connection is refused, so that a node always has a
// device. Up to limit nodes are kept.
func (c *clones) arrive(node string, instance wire.Instance, rival bool, accepted time.Time, limit int) finding {
	c.mu.Lock()
	defer c.mu.Unlock()
	runs, known := c.nodes[node]
	if !known && !c.room(accepted, limit) {
		return finding{}
	}
	runs, found := arrived(runs, instance, rival, accepted)
	if c.nodes == nil {
		c.nodes = map[string][]agentRun{}
	}
	c.nodes[node] = runs
	return found
}

// room reports whether one more node may be kept. If there is no room, nodes without a recent run are dropped first.
func (c *clones) room(now time.Time, limit int) bool {
	if len(c.nodes) < limit {
		return true
	}
	for node, runs := range c.nodes {
		if now.Sub(runs[len(runs)-1].at) > agentMemory {
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
}

// arrived decides about a connection. It returns the runs as they are after it.
func arrived(runs []agentRun, instance wire.Instance, rival bool, accepted time.Time) ([]agentRun, finding) {
	if len(runs) == 0 {
		return []agentRun{{instance: instance, at: accepted}}, finding{}
	}
	holder := runs[len(runs)-1]
	switch {
	case holder.instance == instance:
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
		found.cloned = again.until.IsZero()
		if found.cloned {
			again.until = accepted.Add(cloneRefused)
		}
		again.at = accepted
		if found.refuse = rival && accepted.Before(again.until); found.refuse {
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
	remote   string
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
	found := h.clones.arrive(c.node, c.instance, rival, c.accepted, 2*h.opts.NodeLimit)
	if found.cloned {
		h.metrics.cloned.Inc()
		h.tellCloned(ctx, c, other)
	}
	if !found.refuse {
		return nil
	}
	why := refuse(http.StatusConflict, "duplicate", "two devices use the certificate of this node, and the other one is "+
		"connected: join each under its own name (cloudcore gettoken --node NAME --replace)")
	if found.late {
		why.text = "the node's agent has started again since this connection began"
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

// tellCloned says once in a while that two devices use the certificate of one node.
func (h *Hub) tellCloned(ctx context.Context, c caller, other string) {
	if !h.refused.news(c.node+" cloned", c.accepted) {
		return
	}
	if other == "" {
		other = "an address that is not connected now"
	}
	message := fmt.Sprintf("Two devices use the certificate of node %s, from %s and from %s, as after copying an SD card. "+
		"Run \"cloudcore gettoken --node %s --replace\", join one of them with that token, "+
		"and join the other one under its own name", c.node, c.remote, other, c.node)
	klog.InfoS("Cloned device", "node", c.node, "remote", c.remote, "other", other, "message", message)
	if h.opts.Duplicate == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, clonedPatience)
	defer cancel()
	h.opts.Duplicate(ctx, c.node, message)
}
