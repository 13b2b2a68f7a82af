package wire

import (
	"net"
	"net/netip"
	"sync"
)

const (
	// handshakesMax is how many connections may be between TLS and their header message, sourceHandshakesMax how many of
	// them may come from one address: many nodes may share one behind NAT, but they do not all connect within the same
	// moment.
	handshakesMax       = 256
	sourceHandshakesMax = 32
)

// handshakeSlots bounds the handshakes that are not finished.
type handshakeSlots struct {
	mu      sync.Mutex
	taken   int
	sources map[netip.Addr]int
}

// take takes a slot for a handshake from an address. It reports whether there was one.
func (s *handshakeSlots) take(source netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken >= handshakesMax || s.sources[source] >= sourceHandshakesMax {
		return false
	}
	if s.sources == nil {
		s.sources = map[netip.Addr]int{}
	}
	s.taken++
	s.sources[source]++
	return true
}

// leave gives a slot back.
func (s *handshakeSlots) leave(source netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	if s.sources[source]--; s.sources[source] == 0 {
		delete(s.sources, source)
	}
}

// handshakeSource is what counts as one source: an IPv4 address, or the /64 that an IPv6 host may choose addresses from.
func handshakeSource(addr net.Addr) netip.Addr {
	udp, ok := addr.(*net.UDPAddr)
	if !ok {
		return netip.Addr{}
	}
	ip, ok := netip.AddrFromSlice(udp.IP)
	if !ok {
		return netip.Addr{}
	}
	ip = ip.Unmap()
	if ip.Is6() {
		return netip.PrefixFrom(ip.WithZone(""), 64).Masked().Addr()
	}
	return ip
}
