package node

import (
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
