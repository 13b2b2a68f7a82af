package main

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"time"
)

// plan is one reconnect storm: all links of a fleet end at the same moment.
type plan struct {
	nodes, replicas int
	// cost is the processor time of one connection, from the dial until the node is in sync.
	cost time.Duration
	// cores is how many cores each replica has for it.
	cores float64
	// limit is modules.cloudHub.nodeLimit of each replica.
	limit int
	// timeout is how long a node waits for a connection before it gives up and backs off.
	timeout time.Duration
	// lowest and highest limit the nodes' back-off, as in pkg/retry.Spread.
	lowest, highest time.Duration
	// horizon ends the simulation.
	horizon time.Duration
	seed    uint64
}

// outcome is what a storm did. A node that is not back at the horizon is in neither of the times.
type outcome struct {
	back                  int
	half, mostOf, all     time.Duration
	failures, peakBacklog int
}

// dial is a node's next attempt.
type dial struct {
	at       time.Duration
	failures int
}

type dials []dial

func (d dials) Len() int           { return len(d) }
func (d dials) Less(i, j int) bool { return d[i].at < d[j].at }
func (d dials) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *dials) Push(x any)        { *d = append(*d, x.(dial)) }
func (d *dials) Pop() any {
	last := (*d)[len(*d)-1]
	*d = (*d)[:len(*d)-1]
	return last
}

// replica is one cloudcore. It serves connections one after another.
type replica struct {
	// busyUntil is when it has done all that has arrived.
	busyUntil time.Duration
	connected int
}

// simulate runs a storm on a simulated clock. A load balancer picks a random replica for each dial. Work for a node
// that gave up is done all the same, as a TLS handshake is.
func simulate(p plan) outcome {
	random := rand.New(rand.NewPCG(p.seed, 1))
	each := time.Duration(float64(p.cost) / p.cores)
	replicas := make([]replica, p.replicas)
	queue := make(dials, 0, p.nodes)
	for range p.nodes {
		queue = append(queue, dial{at: p.pause(random, 0), failures: 1})
	}
	heap.Init(&queue)
	var out outcome
	var back []time.Duration
	for len(queue) > 0 && queue[0].at <= p.horizon {
		d := heap.Pop(&queue).(dial)
		r := &replicas[random.IntN(p.replicas)]
		failedAt := d.at
		if r.connected < p.limit {
			r.busyUntil = max(r.busyUntil, d.at) + each
			wait := r.busyUntil - d.at
			out.peakBacklog = max(out.peakBacklog, int(wait/each))
			if wait <= p.timeout {
				r.connected++
				back = append(back, r.busyUntil)
				continue
			}
			failedAt += p.timeout
		}
		out.failures++
		heap.Push(&queue, dial{at: failedAt + p.pause(random, d.failures), failures: d.failures + 1})
	}
	slices.Sort(back)
	out.back = len(back)
	out.half, out.mostOf, out.all = p.reached(back, 0.5), p.reached(back, 0.99), p.reached(back, 1)
	return out
}

// pause returns how long a node waits after that many failures before this one.
func (p plan) pause(random *rand.Rand, failures int) time.Duration {
	longest := p.highest
	if failures < 30 {
		longest = min(longest, p.lowest<<(failures+1))
	}
	return p.lowest + time.Duration(random.Int64N(int64(longest-p.lowest)+1))
}

// reached returns when that share of all nodes was back; 0 if it never was.
func (p plan) reached(back []time.Duration, share float64) time.Duration {
	need := max(1, int(share*float64(p.nodes)))
	if len(back) < need {
		return 0
	}
	return back[need-1]
}
