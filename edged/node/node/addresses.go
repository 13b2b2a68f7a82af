package node

import (
	"cmp"
	"net"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
)

// loopback is the address of a node that has no network.
const loopback = "127.0.0.1"

// Addresses finds the node's own addresses. Its methods may be called from any goroutine.
type Addresses struct {
	configured []string
	device     string
	// ipv6: an address of IPv6 is preferred to one of IPv4.
	ipv6 bool

	mu sync.Mutex
	// last is the address that was found last, previous the one that the Node had when the agent started; "" is none.
	last, previous string
}

// NewAddresses returns the addresses of a node. configured is one IP, or an IPv4 and an IPv6 address separated by a
// comma. If it is empty, the addresses are those of the network interface device. If both are empty, the node's address
// is the one from which packets take the default route. "::" and "0.0.0.0" are as empty, and choose the family that is
// preferred; that is IPv4 otherwise.
func NewAddresses(configured, device string) *Addresses {
	a := &Addresses{
		configured: strings.FieldsFunc(configured, func(r rune) bool { return r == ',' || r == ' ' }),
		device:     device,
	}
	if len(a.configured) == 1 {
		if ip := net.ParseIP(a.configured[0]); ip.IsUnspecified() {
			a.configured, a.ipv6 = nil, ip.To4() == nil
		}
	}
	return a
}

// IPs returns the node's addresses; none while it has had no network yet. A node whose default route or interface is
// gone for a while, as without a DHCP server, keeps its address.
func (a *Addresses) IPs() []string {
	if len(a.configured) > 0 {
		return a.configured
	}
	if a.device != "" {
		return a.choose(AddressOf(a.device, a.ipv6), func() (hardware, other string) { return "", "" })
	}
	return a.choose(IP(a.ipv6), func() (hardware, other string) { return LocalIPs(a.ipv6) })
}

// Missing returns those of the configured addresses that none of the node's interfaces has.
func (a *Addresses) Missing() ([]string, error) {
	if len(a.configured) == 0 {
		return nil, nil
	}
	have, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	return notHeld(a.configured, have), nil
}

// notHeld returns those of some addresses that are not among have.
func notHeld(configured []string, have []net.Addr) []string {
	var list []string
	for _, text := range configured {
		ip := net.ParseIP(text)
		if !slices.ContainsFunc(have, func(a net.Addr) bool {
			n, ok := a.(*net.IPNet)
			return ok && n.IP.Equal(ip)
		}) {
			list = append(list, text)
		}
	}
	return list
}

// IP returns the node's first address, and that of the loopback while it has none.
func (a *Addresses) IP() string {
	if ips := a.IPs(); len(ips) > 0 {
		return ips[0]
	}
	return loopback
}

// IPv6First reports whether the configuration prefers IPv6: its first address is of it.
func (a *Addresses) IPv6First() bool {
	return a.ipv6 || len(a.configured) > 0 && strings.Contains(a.configured[0], ":")
}

// NodeAddresses returns the addresses for the Node's status; hostName is the last of them.
func (a *Addresses) NodeAddresses(hostName string) []v1.NodeAddress {
	var list []v1.NodeAddress
	for _, ip := range a.IPs() {
		list = append(list, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip})
	}
	return append(list, v1.NodeAddress{Type: v1.NodeHostName, Address: hostName})
}

// choose returns the address that was found now, or the one that was found last. If none was found since the start, it
// returns that of the hardware, or else the one that the Node had before, or else that of another interface; local
// finds both. A node that once had an address of the preferred family does not switch to the other family: its route is
// gone for a while.
func (a *Addresses) choose(found string, local func() (hardware, other string)) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if found != "" && (a.prefers(found) || !a.prefers(cmp.Or(a.last, a.previous))) {
		a.last = found
	}
	ip := a.last
	if ip == "" {
		hardware, other := local()
		if a.prefers(a.previous) && !a.prefers(hardware) {
			hardware = ""
		}
		ip = cmp.Or(hardware, a.previous, other)
	}
	if ip == "" {
		return nil
	}
	return []string{ip}
}

// prefers reports whether text is an address of the preferred family.
func (a *Addresses) prefers(text string) bool {
	ip := net.ParseIP(text)
	return ip != nil && (ip.To4() == nil) == a.ipv6
}

// Remember records the address that the Node had before this start of the agent.
func (a *Addresses) Remember(status *v1.NodeStatus) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, address := range status.Addresses {
		if a.previous == "" && address.Type == v1.NodeInternalIP && net.ParseIP(address.Address) != nil {
			a.previous = address.Address
		}
	}
}
