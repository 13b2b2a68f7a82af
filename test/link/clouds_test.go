package link

import (
	"fmt"
	"net"
	"strconv"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/env"
	"github.com/edgecore-io/edgecore/test/testenv/kube"
)

// TestTwoCloudcores: two of them serve one cluster with one CA. The edge moves from one to the other, and nothing
// restarts, nothing is sent again, and what is new arrives. No other cloudcore watches the cluster.
func TestTwoCloudcores(t *testing.T) {
	t.Parallel()
	first := startCluster(t, kube.Options{})
	second := first.WithCloud(t)
	e := startEdge(t, first, nil)
	e.apply(confAndKey, e.full("one"))
	e.running("one")
	before := e.RunningContainers()
	for round, to := range []*env.Cluster{second, first, second} {
		e.cable.Retarget(net.JoinHostPort("127.0.0.1", strconv.Itoa(to.Cloud.Link)))
		name := fmt.Sprintf("new-%d", round)
		e.apply(e.full(name))
		e.running(name)
	}
	// The first one stops for good; the second alone sees the deletion.
	first.StopCloud()
	e.delete("new-0", 1)
	e.gone("new-0")
	e.cluster.NodeUntil(e.NodeName, "to be Ready", env.Ready)
	e.unchanged(before, "a change of the cloudcore")
}
