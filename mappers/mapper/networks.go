package mapper

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
)

// Networks are the addresses that a mapper may connect to: those of the listed networks, or, if none is listed, all
// that are neither the node nor link-local. A mapper is in the node's network, and the authors of Devices choose where
// it connects. Programs on the node that trust the node can be reached only if they are listed. It is a flag.Value.
type Networks struct{ listed []netip.Prefix }

// String implements flag.Value.
func (n *Networks) String() string {
	var list []string
	for _, p := range n.listed {
		list = append(list, p.String())
	}
	return strings.Join(list, ",")
}

// Set implements flag.Value: networks such as 192.168.7.0/24, and addresses, separated by commas.
func (n *Networks) Set(text string) error {
	n.listed = nil
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		prefix, err := netip.ParsePrefix(item)
		if address, err2 := netip.ParseAddr(item); err2 == nil && address.Zone() == "" {
			prefix, err = netip.PrefixFrom(address, address.BitLen()), nil
		}
		if err != nil {
			return fmt.Errorf("%q: want networks such as 192.168.7.0/24, separated by commas", item)
		}
		n.listed = append(n.listed, prefix.Masked())
	}
	return nil
}

// check returns an error if the mapper must not connect to an address; own are the addresses of the node.
func (n *Networks) check(address netip.Addr, own []netip.Addr) error {
	plain := address.Unmap().WithZone("")
	if len(n.listed) > 0 {
		if slices.ContainsFunc(n.listed, func(p netip.Prefix) bool { return p.Contains(plain) }) {
			return nil
		}
		return fmt.Errorf("%s is in none of the networks that this mapper may use: %s", plain, n)
	}
	reason := ""
	switch {
	case plain.IsLoopback(), plain.IsUnspecified(), slices.Contains(own, plain):
		reason = "an address of the node itself"
	case plain.IsLinkLocalUnicast():
		reason = "a link-local address"
	case plain.IsMulticast(), plain == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		reason = "not the address of one device"
	default:
		return nil
	}
	return fmt.Errorf("%s is %s: this mapper connects to it only if its options list it", plain, reason)
}

// ownAddresses returns the addresses of the node.
func ownAddresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("addresses of the node: %w", err)
	}
	var own []netip.Addr
	for _, a := range list {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, prefix.Addr().Unmap())
		}
	}
	return own, nil
}

// Resolve returns an address of a host, a name or an address, to which the mapper may connect.
func (n *Networks) Resolve(ctx context.Context, host string) (netip.Addr, error) {
	own, err := ownAddresses()
	if err != nil {
		return netip.Addr{}, err
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, address := range found {
		if err = n.check(address, own); err == nil {
			return address.Unmap(), nil // the resolver maps IPv4 into IPv6
		}
	}
	return netip.Addr{}, err
}

// Dial connects to HOST:PORT. Every address that a name stands for is checked.
func (n *Networks) Dial(ctx context.Context, address string) (net.Conn, error) {
	dialer := net.Dialer{Control: func(_, resolved string, _ syscall.RawConn) error {
		own, err := ownAddresses()
		if err != nil {
			return err
		}
		to, err := netip.ParseAddrPort(resolved)
		if err != nil {
			return err
		}
		return n.check(to.Addr(), own)
	}}
	return dialer.DialContext(ctx, "tcp", address)
}
