package cloudhub

import "fmt"

const (
	// filesOfNode is how many open files a node takes: its link, and the listener of its tunnel. filesOfAPI is how many
	// it takes for requests to the Kubernetes API.
	filesOfNode = 2
	filesOfAPI  = 1
	// spareFiles is the least that is left for everything else: cloudcore alone has about 25 open files.
	spareFiles = 64
)

// limit is the maximum number of connected nodes.
type limit struct {
	nodes int
	// byFiles is set if the limit of open files is lower than the configured one.
	byFiles bool
	// perNode is how many open files a node takes.
	perNode int
}

// limitOf returns the limit of nodes, given the configured one, the limit of open files of the process (0 is unknown),
// and how many each node takes. Without a free file, cloudcore could take no health check, and would be restarted. So
// an eighth of the files, at least spareFiles, is left for those, for connections that are not sessions yet, and for
// the API server.
func limitOf(configured int, files uint64, perNode int) limit {
	spare := min(max(files/8, spareFiles), files)
	if most := (files - spare) / uint64(perNode); files > 0 && most < uint64(configured) {
		return limit{nodes: max(int(most), 1), byFiles: true, perNode: perNode}
	}
	return limit{nodes: configured, perNode: perNode}
}

const (
	// arrivalsSpare is how many connections may be without a request in addition to two for each node: one that the
	// node has given up, and the next.
	arrivalsSpare = 1000
	// arrivalsLeast is how many may be, however few files may be open.
	arrivalsLeast = 16
)

// arrivalsOf returns how many connections may have no request yet, while so many nodes are connected. A quarter of the
// files that nodes leave stays free.
func (l limit) arrivalsOf(files uint64, connected int) int {
	most := 2*l.nodes + arrivalsSpare
	if files == 0 || files > 1<<30 {
		return most
	}
	spare := min(max(int(files)/8, spareFiles), int(files))
	return max(min(most, int(files)-spare/4-l.perNode*connected), arrivalsLeast)
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
