package edgecontroller

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestWithEndpoint: the endpoint takes the first place in a node's report, and nothing else changes.
func TestWithEndpoint(t *testing.T) {
	for name, c := range map[string]struct{ patch, want string }{
		"a report": {
			`{"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.7"},{"type":"Hostname","address":"e"},` +
				`{"$patch":"replace"}],"capacity":{"cpu":"2"},"daemonEndpoints":{"kubeletEndpoint":{"Port":10250}}}}`,
			`{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"},` +
				`{"type":"InternalIP","address":"10.0.0.7"},{"type":"Hostname","address":"e"},{"$patch":"replace"}],` +
				`"capacity":{"cpu":"2"},"daemonEndpoints":{"kubeletEndpoint":{"Port":20000}}}}`,
		},
		"one that has it": {
			`{"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.7"},` +
				`{"type":"InternalIP","address":"192.0.2.1"}]}}`,
			`{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"},` +
				`{"type":"InternalIP","address":"10.0.0.7"},{"$patch":"replace"}],` +
				`"daemonEndpoints":{"kubeletEndpoint":{"Port":20000}}}}`,
		},
		"conditions alone": {
			`{"metadata":{"uid":"u"},"status":{"conditions":[{"type":"Ready"}]}}`,
			`{"metadata":{"uid":"u"},"status":{"conditions":[{"type":"Ready"}],` +
				`"daemonEndpoints":{"kubeletEndpoint":{"Port":20000}}}}`,
		},
		"no status": {`{"metadata":{}}`, `{"metadata":{}}`},
	} {
		got, err := withEndpoint([]byte(c.patch), "192.0.2.1", 20000)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var a, b any
		if err := json.Unmarshal(got, &a); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(c.want), &b); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(b, a); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	for _, bad := range []string{`[]`, `{"status":[]}`, `{"status":{"addresses":{}}}`} {
		if got, err := withEndpoint([]byte(bad), "192.0.2.1", 20000); err == nil {
			t.Errorf("withEndpoint(%s) = %s, want an error", bad, got)
		}
	}
}

// ports are tunnels with the ports from 20000 to 20009.
type ports struct{ noTunnels }

func (ports) Port(port int32) bool { return port >= 20000 && port < 20010 }

func nodeAt(port int32, addresses ...string) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "e"}}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: a})
	}
	n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeHostName, Address: "e"})
	n.Status.DaemonEndpoints = endpointsOf(port)
	return n
}

// TestForDevice: a device gets its Node with its own addresses first.
func TestForDevice(t *testing.T) {
	c := &Controller{tunnels: ports{}}
	for name, tc := range map[string]struct{ node, want *v1.Node }{
		"with a tunnel":  {nodeAt(20003, "192.0.2.1", "10.0.0.7"), nodeAt(20003, "10.0.0.7", "192.0.2.1")},
		"two of its own": {nodeAt(20003, "192.0.2.1", "a", "b"), nodeAt(20003, "a", "b", "192.0.2.1")},
		"without":        {nodeAt(10250, "10.0.0.7", "10.0.0.8"), nodeAt(10250, "10.0.0.7", "10.0.0.8")},
		"only one":       {nodeAt(20003, "192.0.2.1"), nodeAt(20003, "192.0.2.1")},
		"none":           {nodeAt(20003), nodeAt(20003)},
	} {
		before := tc.node.DeepCopy()
		if diff := cmp.Diff(tc.want, c.forDevice(tc.node)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(before, tc.node); diff != "" {
			t.Errorf("%s: the cached Node has changed:\n%s", name, diff)
		}
	}
	if got := c.forDevice(nil); got != nil {
		t.Errorf("forDevice(nil) = %v, want nil", got)
	}
}

// TestKnownAddresses: the address that cloudcore has written into a Node is not the node's own.
func TestKnownAddresses(t *testing.T) {
	c := &Controller{tunnels: ports{}}
	for name, tc := range map[string]struct {
		node *v1.Node
		want []netip.Addr
	}{
		"with a tunnel": {nodeAt(20003, "192.0.2.1", "10.0.0.7"), []netip.Addr{netip.MustParseAddr("10.0.0.7")}},
		"without":       {nodeAt(10250, "10.0.0.7"), []netip.Addr{netip.MustParseAddr("10.0.0.7")}},
		"none":          {nodeAt(20003), nil},
		"no Node":       {nil, nil},
	} {
		if got := c.knownAddresses(tc.node); !slices.Equal(got, tc.want) {
			t.Errorf("%s: knownAddresses = %v, want %v", name, got, tc.want)
		}
	}
}

func TestPortAt(t *testing.T) {
	for name, tc := range map[string]struct {
		node *v1.Node
		want int32
	}{
		"here":      {nodeAt(20003, "192.0.2.1", "10.0.0.7"), 20003},
		"not first": {nodeAt(20003, "10.0.0.7", "192.0.2.1"), 0},
		"elsewhere": {nodeAt(20003, "192.0.2.9"), 0},
		"no Node":   {nil, 0},
	} {
		if got := portAt(tc.node, "192.0.2.1"); got != tc.want {
			t.Errorf("%s: portAt = %d, want %d", name, got, tc.want)
		}
	}
	n := nodeAt(10250, "10.0.0.7")
	setEndpoint(&n.Status, "192.0.2.1", 20004)
	if diff := cmp.Diff(nodeAt(20004, "192.0.2.1", "10.0.0.7"), n); diff != "" {
		t.Errorf("setEndpoint (-want +got):\n%s", diff)
	}
}
