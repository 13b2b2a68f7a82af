package cloudhub

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// limiters are the rate limiters of nodes. They outlive sessions: a new session gets no new burst. Idle ones are
// dropped when there are many.
type limiters struct {
	rate  rate.Limit
	burst int

	mu    sync.Mutex
	nodes map[string]*rate.Limiter
}

// forNode returns a node's limiter. It keeps up to twice as many as nodes may be connected.
func (l *limiters) forNode(node string, nodes int) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if found, ok := l.nodes[node]; ok {
		return found
	}
	if len(l.nodes) >= 2*nodes {
		now := time.Now()
		for name, limiter := range l.nodes {
			if limiter.TokensAt(now) >= float64(l.burst) {
				delete(l.nodes, name)
			}
		}
	}
	if l.nodes == nil {
		l.nodes = map[string]*rate.Limiter{}
	}
	made := rate.NewLimiter(l.rate, l.burst)
	if len(l.nodes) < 2*nodes {
		l.nodes[node] = made
	}
	return made
}
