package wire

import (
	"net/netip"
	"sync"
)

const (
	// handshakesMax is how many connections may be between TLS and their header message, sourceHandshakesMax how many
	// of them from one address: many nodes may share one behind NAT, but they do not all connect at the same moment.
	handshakesMax       = 256
	sourceHandshakesMax = 32
)

// handshakeSlots limits unfinished handshakes.
type handshakeSlots struct {
	mu      sync.Mutex
	taken   int
	sources map[netip.Prefix]int
}

// take takes a slot for a handshake from an address. It reports whether one was free.
func (s *handshakeSlots) take(source netip.Prefix) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken >= handshakesMax || s.sources[source] >= sourceHandshakesMax {
		return false
	}
	if s.sources == nil {
		s.sources = map[netip.Prefix]int{}
	}
	s.taken++
	s.sources[source]++
	return true
}

// leave returns a slot.
func (s *handshakeSlots) leave(source netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	if s.sources[source]--; s.sources[source] == 0 {
		delete(s.sources, source)
	}
}
