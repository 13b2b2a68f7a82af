package sessions

import (
	"fmt"
	"testing"
	"time"
)

// TestLimitOutlivesSessions: a node that has used up its burst of requests gets no other one with a new session. What
// is kept of nodes that are gone is bounded.
func TestLimitOutlivesSessions(t *testing.T) {
	const burst, links = 1000, 20
	s, now, allowed := New(50, burst), time.Now(), 0
	for range links {
		s.Connected("e1", "edgecore/websocket")
		for range 2 * burst {
			if s.Limiter("e1").AllowN(now, 1) {
				allowed++
			}
		}
		s.Disconnected("e1")
	}
	if allowed != burst {
		t.Errorf("%d requests allowed at once over %d sessions, want %d", allowed, links, burst)
	}
	if other := s.Limiter("e2"); !other.AllowN(now, burst) {
		t.Errorf("another node has %v requests, want %d", other.TokensAt(now), burst)
	}
	for i := range 15_000 {
		node := fmt.Sprint("n", i)
		s.Connected(node, "edgecore/websocket")
		s.Limiter(node).AllowN(now, burst)
		s.Disconnected(node)
	}
	if n, most := s.limits.Len(), 10_000; n > most {
		t.Errorf("the limits of %d nodes are kept, want at most %d", n, most)
	}
}
