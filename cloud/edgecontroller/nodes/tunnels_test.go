package nodes

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/beehive/model"
	"github.com/edgecore-io/edgecore/cloud/cloudstream"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
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

// TestForDevice: a device gets its Node with its own addresses first.
func TestForDevice(t *testing.T) {
	c := &Endpoints{tunnels: fakes.Ports{}}
	for name, tc := range map[string]struct{ node, want *v1.Node }{
		"with a tunnel":  {fakes.NodeAt(20003, "192.0.2.1", "10.0.0.7"), fakes.NodeAt(20003, "10.0.0.7", "192.0.2.1")},
		"two of its own": {fakes.NodeAt(20003, "192.0.2.1", "a", "b"), fakes.NodeAt(20003, "a", "b", "192.0.2.1")},
		"without":        {fakes.NodeAt(10250, "10.0.0.7", "10.0.0.8"), fakes.NodeAt(10250, "10.0.0.7", "10.0.0.8")},
		"only one":       {fakes.NodeAt(20003, "192.0.2.1"), fakes.NodeAt(20003, "192.0.2.1")},
		"none":           {fakes.NodeAt(20003), fakes.NodeAt(20003)},
	} {
		before := tc.node.DeepCopy()
		if diff := cmp.Diff(tc.want, c.ForDevice(tc.node)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(before, tc.node); diff != "" {
			t.Errorf("%s: the cached Node has changed:\n%s", name, diff)
		}
	}
	if got := c.ForDevice(nil); got != nil {
		t.Errorf("forDevice(nil) = %v, want nil", got)
	}
}

// TestKnownAddresses: the address that cloudcore has written into a Node is not the node's own.
func TestKnownAddresses(t *testing.T) {
	c := &Endpoints{tunnels: fakes.Ports{}}
	for name, tc := range map[string]struct {
		node *v1.Node
		want []netip.Addr
	}{
		"with a tunnel": {fakes.NodeAt(20003, "192.0.2.1", "10.0.0.7"), []netip.Addr{netip.MustParseAddr("10.0.0.7")}},
		"without":       {fakes.NodeAt(10250, "10.0.0.7"), []netip.Addr{netip.MustParseAddr("10.0.0.7")}},
		"none":          {fakes.NodeAt(20003), nil},
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
		"here":      {fakes.NodeAt(20003, "192.0.2.1", "10.0.0.7"), 20003},
		"not first": {fakes.NodeAt(20003, "10.0.0.7", "192.0.2.1"), 0},
		"elsewhere": {fakes.NodeAt(20003, "192.0.2.9"), 0},
		"no Node":   {nil, 0},
	} {
		if got := portAt(tc.node, "192.0.2.1"); got != tc.want {
			t.Errorf("%s: portAt = %d, want %d", name, got, tc.want)
		}
	}
	n := fakes.NodeAt(10250, "10.0.0.7")
	setEndpoint(&n.Status, "192.0.2.1", 20004)
	if diff := cmp.Diff(fakes.NodeAt(20004, "192.0.2.1", "10.0.0.7"), n); diff != "" {
		t.Errorf("setEndpoint (-want +got):\n%s", diff)
	}
}

// TestRestartsWithOnePort: two Nodes name one port, which an older cloudcore may have let a node do. Neither gets it,
// and no third node does, in 40 restarts.
func TestRestartsWithOnePort(t *testing.T) {
	const address = "127.31.7.11"
	for restart := range 40 {
		f := newFixture(t)
		s, err := cloudstream.New(cloudstream.Options{
			Address: netip.MustParseAddr(address), FirstPort: 20000, LastPort: 20004,
			Previous: func(node string) int32 { return f.TunnelPort(node, address) },
			Named:    func(port int32) bool { return f.TunnelPortNamed(address, port) },
			Send:     func(string, *model.Message) bool { return false },
		})
		if err != nil {
			t.Fatal(err)
		}
		f.SetTunnels(s)
		for _, name := range []string{"a", "b", "c"} {
			n := fakes.NodeAt(20003, address, "10.0.0.2")
			if name == "c" {
				n = fakes.NodeAt(20001, address, "10.0.0.3")
			}
			n.ObjectMeta = fakes.Node(name).ObjectMeta
			f.add(n)
		}
		f.RestoreEndpoints()
		for _, name := range []string{"a", "b", "c", "new"} {
			s.Connected(name, netip.MustParseAddr("192.0.2.7"), nil)
			_, port, ok := s.Endpoint(name, nil)
			if name == "c" && port != 20001 || name != "c" && (port == 20003 || port == 20001) {
				t.Errorf("restart %d: node %s has port %d, %v; want 20001 for c, and 20003 for none", restart, name,
					port, ok)
			}
		}
		s.Close()
	}
}

// TestTunnelsOpenedOften: a node that opens its tunnel again and again costs the API server no more than a look at its
// Node every 10 s, and the last one is not lost.
func TestTunnelsOpenedOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.api.Answer(func(fakes.Call) (int, any) { return http.StatusOK, fakes.Node("e") })
		ctx, cancel := context.WithCancel(t.Context())
		var workers sync.WaitGroup
		f.Endpoints.Run(ctx, workers.Go)
		opened := 0
		for range 300 {
			f.TunnelOpened("e")
			opened++
			time.Sleep(100 * time.Millisecond)
		}
		synctest.Wait()
		before := len(f.api.Seen())
		if before < 2 || before > 4 {
			t.Errorf("%d requests for %d tunnels in 30 s, want one in 10 s", before, opened)
		}
		f.TunnelOpened("e")
		f.TunnelOpened("e")
		time.Sleep(2 * endpointEvery)
		synctest.Wait()
		if after := len(f.api.Seen()); after == before || after > before+2 {
			t.Errorf("%d requests after the last tunnel, want one or two", after-before)
		}
		cancel()
		workers.Wait()
	})
}
