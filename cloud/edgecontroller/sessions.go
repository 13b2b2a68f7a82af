package edgecontroller

import (
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/edgecore-io/edgecore/cloud/ratelimit"
)

// capablePrefix is the protocol prefix of our edgecores.
const capablePrefix = "edgecore/"

// sessions tracks the nodes connected to this cloudcore.
type sessions struct {
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

func newSessions(qps float64, burst int) *sessions {
	return &sessions{limits: ratelimit.New[string](rate.Limit(qps), burst), nodes: map[string]*session{}}
}

func (s *sessions) connected(node, protocol string) (capable bool) {
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

func (s *sessions) disconnected(node string) {
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

// capable reports whether a node is connected here with our edgecore.
func (s *sessions) capable(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[node]
	return n != nil && n.capable
}

// connectedHere reports whether a node is connected to this cloudcore.
func (s *sessions) connectedHere(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[node] != nil
}

// registered remembers that a node has just been registered.
func (s *sessions) registered(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[node]; n != nil {
		n.registered = true
	}
}

// takeRegistered reports whether a node was registered since it connected, once.
func (s *sessions) takeRegistered(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[node]
	if n == nil || !n.registered {
		return false
	}
	n.registered = false
	return true
}

// limiter returns a node's rate limiter.
func (s *sessions) limiter(node string) *rate.Limiter { return s.limits.Of(node, time.Now()) }

// capableNodes lists the connected nodes that run our edgecore.
func (s *sessions) capableNodes() []string {
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
