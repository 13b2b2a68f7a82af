package cloudhub

import "fmt"

// filesPerNode is how many open files a node takes: its link, and its tunnel.
const filesPerNode = 2

// limit is the maximum number of connected nodes.
type limit struct {
	nodes int
	// byFiles is set if the limit of open files is lower than the configured one.
	byFiles bool
}

// limitOf returns the limit of nodes, given the configured one and the limit of open files of the process; 0 is
// unknown. Without a free file, cloudcore could take no health check, and would be restarted. So an eighth of the files
// is left for those, for connections that are not sessions yet, and for the API server.
func limitOf(configured int, files uint64) limit {
	if most := files - files/8; files > 0 && most/filesPerNode < uint64(configured) {
		return limit{nodes: max(int(most/filesPerNode), 1), byFiles: true}
	}
	return limit{nodes: configured}
}

// full is the error of a node that finds no room.
func (l limit) full() error {
	remedy := "modules.cloudHub.nodeLimit"
	if l.byFiles {
		remedy = "the limit of open files (LimitNOFILE of the service or of containerd, or ulimit -n)"
	}
	return fmt.Errorf("%d nodes are connected to this cloudcore, which is its limit: raise %s, or run another "+
		"cloudcore", l.nodes, remedy)
}
