package node

import (
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

// TestAddresses: one of each family where the configuration says so.
func TestAddresses(t *testing.T) {
	for in, want := range map[string][]string{
		"192.0.2.1": {"192.0.2.1"}, "192.0.2.1, fd00::1": {"192.0.2.1", "fd00::1"},
	} {
		if diff := cmp.Diff(want, NewAddresses(in, "").IPs()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if got := NewAddresses("", "none-such").IPs(); got != nil {
		t.Errorf("addresses %v of an interface that is not there, want none", got)
	}
}

// TestFamily: an address of all zeros chooses a family. The other one is better than none, and a node keeps the one
// that it wants.
func TestFamily(t *testing.T) {
	const v4, v6, more6 = "192.0.2.1", "2001:db8::7", "2001:db8::8"
	for name, c := range map[string]struct {
		configured string
		found      []string
		want       string
		first      bool
	}{
		"IPv6":                  {"::", []string{v6}, v6, true},
		"IPv6 changes":          {"::", []string{v6, more6}, more6, true},
		"IPv6 goes":             {"::", []string{v6, v4}, v6, true},
		"IPv6 comes":            {"::", []string{v4, v6}, v6, true},
		"no IPv6":               {"::", []string{v4}, v4, true},
		"IPv4":                  {"0.0.0.0", []string{v4, v6}, v4, false},
		"IPv4 without a choice": {"", []string{v4, v6}, v4, false},
	} {
		a := NewAddresses(c.configured, "")
		var got []string
		for _, ip := range c.found {
			got = a.choose(ip, func() (string, string) { return "", "" })
		}
		if diff := cmp.Diff([]string{c.want}, got); diff != "" || a.IPv6First() != c.first {
			t.Errorf("%s: IPv6First() = %t, want %t (-want +got):\n%s", name, a.IPv6First(), c.first, diff)
		}
		for _, ip := range a.IPs() {
			if ip == c.configured {
				t.Errorf("%s: addresses %v, want none of all zeros", name, a.IPs())
			}
		}
	}
}

// TestMissing: addresses of the configuration that no interface has.
func TestMissing(t *testing.T) {
	have := []net.Addr{
		&net.IPNet{IP: net.ParseIP("192.0.2.1"), Mask: net.CIDRMask(24, 32)},
		&net.IPNet{IP: net.ParseIP("2001:db8::1"), Mask: net.CIDRMask(64, 128)},
		&net.TCPAddr{},
	}
	configured := []string{"192.0.2.1", "192.0.2.2", "2001:DB8:0::1", "2001:db8::2"}
	if diff := cmp.Diff([]string{"192.0.2.2", "2001:db8::2"}, notHeld(configured, have)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for text, want := range map[string]int{"": 0, "::": 0, "0.0.0.0": 0, "127.0.0.1": 0, "192.0.2.254": 1} {
		if list, err := NewAddresses(text, "").Missing(); err != nil || len(list) != want {
			t.Errorf("Missing of %q = %v, %v; want %d", text, list, err, want)
		}
	}
}

// TestAddressKept: a node keeps its address while its default route is gone.
func TestAddressKept(t *testing.T) {
	before := &v1.NodeStatus{Addresses: []v1.NodeAddress{
		{Type: v1.NodeHostName, Address: "edge-1"}, {Type: v1.NodeInternalIP, Address: "192.0.2.7"},
	}}
	for name, c := range map[string]struct {
		before          *v1.NodeStatus
		found           []string
		hardware, other string
		want            []string
	}{
		"a default route":       {nil, []string{"192.0.2.1"}, "", "10.0.0.1", []string{"192.0.2.1"}},
		"another default route": {nil, []string{"192.0.2.1", "192.0.2.2"}, "", "", []string{"192.0.2.2"}},
		"it is lost": {
			nil, []string{"192.0.2.1", ""}, "192.0.2.3", "10.0.0.1", []string{"192.0.2.1"},
		},
		"a network that has none":        {before, []string{""}, "192.0.2.3", "10.0.0.1", []string{"192.0.2.3"}},
		"lost since before":              {before, []string{""}, "", "10.0.0.1", []string{"192.0.2.7"}},
		"in a container without a route": {nil, []string{""}, "", "10.0.0.1", []string{"10.0.0.1"}},
		"no network yet":                 {nil, []string{""}, "", "", nil},
		"only IPv6's route is left":      {nil, []string{"192.0.2.1", "2001:db8::7"}, "", "", []string{"192.0.2.1"}},
		"and IPv4's comes back": {
			nil, []string{"192.0.2.1", "2001:db8::7", "192.0.2.2"}, "", "", []string{"192.0.2.2"},
		},
		"so since before":              {before, []string{"2001:db8::7"}, "", "", []string{"192.0.2.7"}},
		"so since before, hardware":    {before, []string{"2001:db8::7"}, "192.0.2.3", "", []string{"192.0.2.3"}},
		"only IPv6's hardware is left": {before, []string{""}, "2001:db8::7", "", []string{"192.0.2.7"}},
		"a node of IPv6": {
			nil, []string{"2001:db8::7", "2001:db8::8"}, "", "", []string{"2001:db8::8"},
		},
		"IPv4 is new": {nil, []string{"2001:db8::7", "192.0.2.1"}, "", "", []string{"192.0.2.1"}},
	} {
		var a Addresses
		if c.before != nil {
			a.Remember(c.before)
		}
		var got []string
		for _, ip := range c.found {
			got = a.choose(ip, func() (string, string) { return c.hardware, c.other })
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestNodeAddresses: the host name follows the addresses, and a node without an address is reached over the loopback.
func TestNodeAddresses(t *testing.T) {
	a := NewAddresses("2001:db8::1,192.0.2.1", "")
	want := []v1.NodeAddress{
		{Type: v1.NodeInternalIP, Address: "2001:db8::1"}, {Type: v1.NodeInternalIP, Address: "192.0.2.1"},
		{Type: v1.NodeHostName, Address: "edge-1"},
	}
	if diff := cmp.Diff(want, a.NodeAddresses("edge-1")); diff != "" {
		t.Errorf("NodeAddresses mismatch (-want +got):\n%s", diff)
	}
	if a.IP() != "2001:db8::1" || !a.IPv6First() {
		t.Errorf("IP() = %s, IPv6First() = %t, want 2001:db8::1, true", a.IP(), a.IPv6First())
	}
	if none := NewAddresses("", "none-such"); none.IP() != "127.0.0.1" || none.IPv6First() {
		t.Errorf("without an address: IP() = %s, IPv6First() = %t, want 127.0.0.1, false", none.IP(), none.IPv6First())
	}
}
