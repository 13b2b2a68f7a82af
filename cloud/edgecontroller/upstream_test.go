package edgecontroller

import (
	"context"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/sessions"
)

// TestAwaitRequests: what other controllers do for a node counts in its rate limit; more than a burst at once is
// counted as a burst.
func TestAwaitRequests(t *testing.T) {
	c := &Controller{sessions: sessions.New(0.001, 2), options: Options{NodeQPS: 0.001}}
	c.sessions.Connected("n1", "edgecore/websocket")
	if err := c.AwaitRequests(t.Context(), "n1", 5); err != nil {
		t.Errorf("the first requests: %v, want no error", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.AwaitRequests(ctx, "n1", 1); err == nil || !strings.Contains(err.Error(), "node n1 sends more than") {
		t.Errorf("a request after the burst: %v, want that the node sends too many", err)
	}
	if err := c.AwaitRequests(t.Context(), "n2", 1); err != nil {
		t.Errorf("a node that is not connected: %v, want no error", err)
	}
}
