package nodes

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/internal/fakes"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/sessions"
)

// dead are addresses at which no cloudcore is alive; known are those of cloudcores, and asked those that were asked
// about.
type dead struct {
	addresses, known map[string]bool
	asked            []string
	err              error
}

func (d *dead) Known(address string) bool { return d.known[address] }
func (d *dead) Address() string           { return "192.0.2.8" }

func (d *dead) Dead(_ context.Context, addresses []string) (map[string]bool, error) {
	d.asked = append(d.asked, addresses...)
	return d.addresses, d.err
}

// TestOrphans: only nodes that are offline, and whose cloudcore is gone, are taken over; nothing is asked where none is
// offline.
func TestOrphans(t *testing.T) {
	c := &Endpoints{tunnels: fakes.Ports{}, Access: Access{Sessions: sessions.New(1, 1)}}
	c.Sessions.Connected("here", "edgecore/websocket")
	node := func(name string, ready v1.ConditionStatus, port int32, addresses ...string) *v1.Node {
		n := fakes.NodeAt(port, addresses...)
		n.Name = name
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: ready}}
		return n
	}
	unheard := fakes.NodeAt(20003, "192.0.2.1")
	unheard.Name = "unheard of"
	online := []*v1.Node{
		node("online", v1.ConditionTrue, 20003, "192.0.2.1", "10.0.0.7"),
		node("not ready", v1.ConditionFalse, 20003, "192.0.2.1", "10.0.0.7"),
		node("direct", v1.ConditionUnknown, 10250, "192.0.2.1"),
		node("without address", v1.ConditionUnknown, 20003),
		node("here", v1.ConditionUnknown, 20003, "192.0.2.1", "10.0.0.7"),
		unheard,
	}
	d := &dead{addresses: map[string]bool{"192.0.2.1": true}}
	if got, err := c.orphans(t.Context(), online, d); len(got) != 0 || err != nil || len(d.asked) != 0 {
		t.Errorf("orphans = %v, %v, asked about %v; want none", got, err, d.asked)
	}
	orphan := node("orphan", v1.ConditionUnknown, 20003, "192.0.2.1", "10.0.0.7")
	got, err := c.orphans(t.Context(), append(online, orphan,
		node("another", v1.ConditionUnknown, 20003, "192.0.2.1", "10.0.0.8"),
		node("reached directly", v1.ConditionUnknown, 20003, "192.0.2.1"),
		node("of a live one", v1.ConditionUnknown, 20003, "192.0.2.2", "10.0.0.7")), d)
	if len(got) != 2 || err != nil || got[0] != orphan && got[1] != orphan {
		t.Errorf("orphans = %v, %v; want orphan and another", got, err)
	}
	if diff := cmp.Diff([]string{"192.0.2.1", "192.0.2.2"}, d.asked); diff != "" {
		t.Errorf("asked about (-want +got):\n%s", diff)
	}
	d.addresses["10.0.0.5"], d.known = true, map[string]bool{"192.0.2.1": true, "192.0.2.2": true}
	got, err = c.orphans(t.Context(), []*v1.Node{
		node("in another range", v1.ConditionUnknown, 30003, "192.0.2.1", "10.0.0.7"),
		node("in another range, of a live one", v1.ConditionUnknown, 30003, "192.0.2.2", "10.0.0.7"),
		node("direct, on the host of a cloudcore", v1.ConditionUnknown, 10250, "192.0.2.1", "10.0.0.7"),
		node("direct, with two addresses", v1.ConditionUnknown, 10250, "10.0.0.5", "10.0.0.7"),
	}, d)
	if len(got) != 1 || err != nil || got[0].Name != "in another range" {
		t.Errorf("orphans = %v, %v; want the one in another range", got, err)
	}
	got, err = c.orphans(t.Context(), []*v1.Node{
		node("once here", v1.ConditionUnknown, 30003, "192.0.2.8", "10.0.0.7"),
		node("still here", v1.ConditionUnknown, 20003, "192.0.2.8", "10.0.0.7"),
	}, d)
	if len(got) != 1 || err != nil || got[0].Name != "once here" {
		t.Errorf("orphans = %v, %v; want the one with a port that this cloudcore does not have any longer", got, err)
	}
	d.err = errors.New("nothing is known")
	if got, err := c.orphans(t.Context(), []*v1.Node{orphan}, d); len(got) != 0 || !errors.Is(err, d.err) {
		t.Errorf("orphans = %v, %v; want none, and why", got, err)
	}
	at := time.Date(2026, 11, 25, 15, 22, 22, 0, time.UTC)
	orphan.Status.Conditions[0].LastTransitionTime = metav1.NewTime(at)
	if got := offlineSince(orphan); !got.Equal(at) {
		t.Errorf("offlineSince = %v, want %v", got, at)
	}
	if got := offlineSince(online[0]); !got.IsZero() {
		t.Errorf("offlineSince of a node that is online = %v, want none", got)
	}
}

// TestAddressAndPort: where another cloudcore has taken a node over, a report without addresses changes its address and
// port together.
func TestAddressAndPort(t *testing.T) {
	c := &Endpoints{tunnels: fakes.Ports{}}
	taken := fakes.NodeAt(20005, "192.0.2.2", "10.0.0.7")
	patch, err := withAddresses([]byte(`{"status":{"phase":"x"}}`), c.addressesOf(taken))
	if err == nil {
		patch, err = withEndpoint(patch, "192.0.2.1", 20003)
	}
	const want = `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"},` +
		`{"type":"InternalIP","address":"10.0.0.7"},{"type":"Hostname","address":"e"},{"$patch":"replace"}],` +
		`"daemonEndpoints":{"kubeletEndpoint":{"Port":20003}},"phase":"x"}}`
	if string(patch) != want || err != nil {
		t.Errorf("patch = %s, %v; want %s", patch, err, want)
	}
	if patch, err := withAddresses([]byte(`{"metadata":{}}`), nil); string(patch) != `{"metadata":{}}` || err != nil {
		t.Errorf("patch without a status = %s, %v; want it unchanged", patch, err)
	}
}
