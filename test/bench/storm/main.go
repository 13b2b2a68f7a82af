// Command storm simulates what happens when all nodes lose their links at the same moment, and prints how long it takes
// until they are back. It measures nothing: the cost of a connection comes from test/bench/link. See docs/scale.md.
package main

import (
	"flag"
	"fmt"
	"time"
)

func main() {
	cost := flag.Duration("cost", 2400*time.Microsecond, "processor `time` of one connection until it is in sync")
	cores := flag.Float64("cores", 2, "cores of each replica")
	limit := flag.Int("node-limit", 100000, "modules.cloudHub.nodeLimit of each replica")
	timeout := flag.Duration("timeout", dialTimeout, "how long a node waits for a connection")
	nodes := flag.Int("nodes", 0, "simulate only a fleet of this size; 0: a table of sizes")
	replicas := flag.Int("replicas", 1, "how many replicas there are with --nodes")
	flag.Parse()
	fmt.Println("| nodes | replicas | 50 % back | 99 % back | all back | failed dials per node | longest queue |")
	fmt.Println("|---|---|---|---|---|---|---|")
	for _, f := range fleets(*nodes, *replicas) {
		p := standard(f.nodes, f.replicas)
		p.cost, p.cores, p.limit, p.timeout = *cost, *cores, *limit, *timeout
		o := simulate(p)
		fmt.Printf("| %d | %d | %s | %s | %s | %.2f | %d |\n", f.nodes, f.replicas, text(o.half), text(o.mostOf),
			text(o.all), float64(o.failures)/float64(f.nodes), o.peakBacklog)
	}
}

// fleet is the size of a fleet.
type fleet struct{ nodes, replicas int }

// fleets returns the fleets to simulate: one of that many nodes, or those of the table in docs/scale.md for 0 nodes.
func fleets(nodes, replicas int) []fleet {
	if nodes > 0 {
		return []fleet{{nodes, replicas}}
	}
	var list []fleet
	for _, n := range []int{1000, 5000, 10000, 50000, 100000} {
		for _, r := range []int{1, 3, 10, 20} {
			if n >= 10000 != (r == 1) {
				list = append(list, fleet{n, r})
			}
		}
	}
	return list
}

// text writes a time; 0 is one that was not reached.
func text(d time.Duration) string {
	if d == 0 {
		return "never"
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// dialTimeout is the default of handshakeTimeout, which edgehub allows a connection.
const dialTimeout = 30 * time.Second

// standard returns a storm with edgehub's back-off and the cost that was measured with 5,000 nodes.
func standard(nodes, replicas int) plan {
	return plan{
		nodes:    nodes,
		replicas: replicas,
		cost:     2400 * time.Microsecond,
		cores:    2,
		limit:    nodes,
		timeout:  dialTimeout,
		lowest:   time.Second,
		highest:  time.Minute,
		horizon:  time.Hour,
		seed:     1,
	}
}
