package cloudhub

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// limiters are the rates of nodes, which outlive their sessions: a new session is no new burst. Those at rest are
// dropped when there are many.
type limiters struct {
	mu    sync.Mutex
	nodes map[string]*rate.Limiter
}

// of returns a node's limiter. Up to twice as many as the nodes that may be connected are kept.
func (l *limiters) of(node string, nodes int) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if found, ok := l.nodes[node]; ok {
		return found
	}
	if len(l.nodes) >= 2*nodes {
		now := time.Now()
		for name, limiter := range l.nodes {
			if limiter.TokensAt(now) >= doubtfulBurst {
				delete(l.nodes, name)
			}
		}
	}
	if l.nodes == nil {
		l.nodes = map[string]*rate.Limiter{}
	}
	made := rate.NewLimiter(doubtfulRate, doubtfulBurst)
	if len(l.nodes) < 2*nodes {
		l.nodes[node] = made
	}
	return made
}
