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
	flag.Parse()
	fmt.Println("| nodes | replicas | 50 % back | 99 % back | all back | failed dials per node | longest queue |")
	fmt.Println("|---|---|---|---|---|---|---|")
	for _, nodes := range []int{1000, 5000, 10000, 50000, 100000} {
		for _, replicas := range []int{1, 3, 10, 20} {
			if nodes >= 10000 == (replicas == 1) {
				continue
			}
			p := standard(nodes, replicas)
			p.cost, p.cores, p.limit, p.timeout = *cost, *cores, *limit, *timeout
			o := simulate(p)
			fmt.Printf("| %d | %d | %s | %s | %s | %.2f | %d |\n", nodes, replicas, text(o.half), text(o.mostOf),
				text(o.all), float64(o.failures)/float64(nodes), o.peakBacklog)
		}
	}
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
