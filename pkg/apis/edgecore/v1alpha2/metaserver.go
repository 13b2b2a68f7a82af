package v1alpha2

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/edgecore-io/edgecore/pkg/apis/strict"
)

// ServerAddress returns the address that Server says.
func (m *MetaServer) ServerAddress() (netip.AddrPort, error) { return addressOf(m.Server) }

// PodAddresses returns the addresses that DummyServer says.
func (m *MetaServer) PodAddresses() ([]netip.AddrPort, error) {
	var all []netip.AddrPort
	for text := range strings.SplitSeq(m.DummyServer, ",") {
		a, err := addressOf(strings.TrimSpace(text))
		switch ip := a.Addr(); {
		case err != nil:
			return nil, err
		case ip.IsLoopback(), ip.IsUnspecified(), ip.IsMulticast(), ip.Is6() && ip.IsLinkLocalUnicast():
			return nil, fmt.Errorf("address %s cannot be reached from pods", ip)
		case len(all) == 2, len(all) == 1 && all[0].Addr().Is4() == ip.Is4():
			return nil, fmt.Errorf("there are several addresses of a family")
		}
		all = append(all, a)
	}
	return all, nil
}

func addressOf(text string) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(text)
	switch {
	case err != nil:
		return netip.AddrPort{}, err
	case a.Port() == 0, a.Addr().Zone() != "", a.Addr().Is4In6():
		return netip.AddrPort{}, fmt.Errorf("address %s has no port, or is in a form that is not supported", text)
	}
	return a, nil
}

func checkEndpoint(c *strict.Checker, path, value string) {
	if _, err := addressOf(value); err != nil {
		c.Fail(path, value, "an IP address and a port, such as 127.0.0.1:10550")
	}
}

func checkPodEndpoints(c *strict.Checker, path, value string) {
	if _, err := (&MetaServer{DummyServer: value}).PodAddresses(); err != nil {
		c.Fail(path, value, "an IP address that pods can reach and a port, such as 169.254.30.10:10550, or one of "+
			"IPv4 and one of IPv6 with a comma between")
	}
}
