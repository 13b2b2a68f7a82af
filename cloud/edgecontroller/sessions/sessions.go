// Package sessions knows which nodes are connected to this cloudcore, and limits their requests.
package sessions

import (
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/edgecore-io/edgecore/pkg/ratelimit"
)

// capablePrefix is the protocol prefix of our edgecores.
const capablePrefix = "edgecore/"

// Sessions tracks the nodes connected to this cloudcore.
type Sessions struct {
	// limits are the rate limits of nodes. They outlive sessions: a node that connects again gets no new burst.
	limits *ratelimit.Limiter[string]

	mu    sync.Mutex
	nodes map[string]*session
}

type session struct {
	// links counts sessions: during a replacement there are two for a moment, and they may end in any order.
	links   int
	capable bool
	// registered is set from the registration of the node over this session until its lease is first renewed.
	registered bool
}

// New returns sessions whose nodes are limited to so many requests a second, and as many at once as burst.
func New(qps float64, burst int) *Sessions {
	return &Sessions{limits: ratelimit.New[string](rate.Limit(qps), burst), nodes: map[string]*session{}}
}

// Connected begins a session of a node. It reports whether the node runs our edgecore.
func (s *Sessions) Connected(node, protocol string) (capable bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[node]
	if n == nil {
		n = &session{}
		s.nodes[node] = n
	}
	n.links++
	n.capable = strings.HasPrefix(protocol, capablePrefix)
	return n.capable
}

// Disconnected ends a session of a node.
func (s *Sessions) Disconnected(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[node]
	if n == nil {
		return
	}
	if n.links--; n.links <= 0 {
		delete(s.nodes, node)
	}
}

// Capable reports whether a node is connected here with our edgecore.
func (s *Sessions) Capable(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[node]
	return n != nil && n.capable
}

// ConnectedHere reports whether a node is connected to this cloudcore.
func (s *Sessions) ConnectedHere(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[node] != nil
}

// Registered remembers that a node has just been registered.
func (s *Sessions) Registered(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[node]; n != nil {
		n.registered = true
	}
}

// TakeRegistered reports whether a node was registered since it connected, once.
func (s *Sessions) TakeRegistered(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[node]
	if n == nil || !n.registered {
		return false
	}
	n.registered = false
	return true
}

// Limiter returns a node's rate limiter.
func (s *Sessions) Limiter(node string) *rate.Limiter { return s.limits.Of(node, time.Now()) }

// CapableNodes lists the connected nodes that run our edgecore.
func (s *Sessions) CapableNodes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]string, 0, len(s.nodes))
	for name, n := range s.nodes {
		if n.capable {
			out = append(out, name)
		}
	}
	return out
}
