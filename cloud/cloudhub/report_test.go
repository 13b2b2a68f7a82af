package cloudhub

import (
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/pkg/resource"
	"github.com/edgecore-io/edgecore/pkg/wire"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestRequestStatus: a node that agreed to it is asked for a pod's status; others are not.
func TestRequestStatus(t *testing.T) {
	t.Parallel()
	c := startCloud(t, nil)
	e := newEdge(t, "n1")
	e.mute = true
	e.dialOurs(c)
	newEdge(t, "upstream").dialUpstream(c)
	older := c.options("older", c.ca.Node(t, "older", time.Now().Add(time.Hour)))
	older.Features = wire.Features{Inventory: true}
	conn, err := wire.DialWebSocket(c.ctx, older)
	if err != nil {
		t.Fatal(err)
	}
	newEdge(t, "older").over(conn)
	pod := resource.Key{Namespace: "a", Type: resource.TypePod, Name: "p"}
	wait.True(t, "the nodes to be connected", func() bool { return len(c.hub.Connected()) == 3 })
	for node, want := range map[string]bool{"n1": true, "upstream": false, "older": false, "none": false} {
		if got := c.hub.RequestStatus(node, pod, "u1"); got != want {
			t.Errorf("RequestStatus of %s = %v, want %v", node, got, want)
		}
	}
	wait.True(t, "the request", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, m := range e.got {
			if m.Route.Operation == wire.OpReport {
				uid, err := wire.ParseReportRequest(m)
				return uid == "u1" && err == nil && m.Route.Resource == "a/pod/p"
			}
		}
		return false
	})
}
