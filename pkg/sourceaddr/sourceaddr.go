// Package sourceaddr maps addresses to sources of connections and requests, where the share of each source is bounded.
package sourceaddr

import (
	"net"
	"net/netip"
)

// hostBits is the length of the IPv6 networks whose hosts may choose among all of their addresses.
const hostBits = 64

// Of returns the source of a TCP or UDP address: one IPv4 address, or one IPv6 network of 64 bits. It is invalid (the
// zero Prefix) for an address of another kind, such as a Unix socket.
func Of(address net.Addr) netip.Prefix {
	var ip net.IP
	switch a := address.(type) {
	case *net.TCPAddr:
		ip = a.IP
	case *net.UDPAddr:
		ip = a.IP
	}
	addr, _ := netip.AddrFromSlice(ip)
	return OfAddr(addr)
}

// Parse returns the source of an address with a port, as in http.Request.RemoteAddr.
func Parse(remote string) netip.Prefix {
	a, _ := netip.ParseAddrPort(remote)
	return OfAddr(a.Addr())
}

// OfAddr returns the source of an address without a port.
func OfAddr(addr netip.Addr) netip.Prefix {
	addr = addr.Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() && !addr.IsLoopback() {
		bits = hostBits
	}
	prefix, _ := addr.Prefix(bits) // fails for the zero Addr only
	return prefix
}
