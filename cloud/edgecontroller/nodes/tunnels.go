package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kjson "k8s.io/apimachinery/pkg/util/json"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/keyqueue"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/nodeevent"
	"github.com/edgecore-io/edgecore/pkg/ratelimit"
)

// ReasonTunnelFailed is the reason of events of a Node whose kubelet API cannot be reached through a tunnel.
const ReasonTunnelFailed = "TunnelFailed"

const (
	tunnelEventEvery = 10 * time.Minute
	// endpointEvery is how often a node's endpoint is written for one that cannot report it.
	endpointEvery = 10 * time.Second
)

// Tunnels knows where callers reach the kubelet APIs of nodes; see package cloudstream. The first InternalIP of a
// Node and its kubelet's port are what kube-apiserver, metrics-server and Prometheus connect to.
type Tunnels interface {
	// Endpoint returns the address and port of a node with tunnels that is connected here and has these addresses of
	// its own; ok is false if callers connect to the node itself.
	Endpoint(node string, own []netip.Addr) (address string, port int32, ok bool)
	// Port reports whether a port is one of those for nodes.
	Port(port int32) bool
	// Restore is called for each Node when cloudcore starts, and when its addresses have changed; since is when the
	// node went offline, zero if it is not, or if that is not known. NodeChanged is called when a Node was deleted or
	// its addresses have changed. Neither blocks.
	Restore(node string, since time.Time)
	NodeChanged(node string)
	// Adopt opens a port for a node that is not connected to any cloudcore since a time, preferably the given one, and
	// returns where callers reach it. NodeChanged closes it again unless the Node has it.
	Adopt(node string, port int32, since time.Time) (address string, got int32, err error)
}

// noTunnels is a cloudcore without tunnels.
type noTunnels struct{}

func (noTunnels) Endpoint(string, []netip.Addr) (string, int32, bool) { return "", 0, false }
func (noTunnels) Port(int32) bool                                     { return false }
func (noTunnels) Restore(string, time.Time)                           {}
func (noTunnels) NodeChanged(string)                                  {}
func (noTunnels) Adopt(string, int32, time.Time) (string, int32, error) {
	return "", 0, errors.New("this cloudcore has no tunnels")
}

// Endpoints writes into Nodes where callers reach the kubelet APIs of nodes.
type Endpoints struct {
	Access
	// Queue has the nodes whose endpoint is to be written because they cannot report it, and writes limits how often.
	keyqueue.Queue
	writes  *ratelimit.Limiter[string]
	tunnels Tunnels
	// cloudcores reports whether an address is another cloudcore's.
	cloudcores func(address string) bool
	// events limits the events about tunnels that fail, takeovers the nodes that are taken over.
	events    *ratelimit.Limiter[string]
	takeovers *rate.Limiter

	// Set by start.
	ctx   context.Context
	spawn func(func())
}

func newEndpoints(a Access) *Endpoints {
	e := &Endpoints{
		Access:     a,
		writes:     ratelimit.New[string](rate.Every(endpointEvery), 1),
		tunnels:    noTunnels{},
		cloudcores: func(string) bool { return false },
		events:     ratelimit.New[string](rate.Every(tunnelEventEvery), 1),
		takeovers:  rate.NewLimiter(takeoverRate, takeoverRate),
	}
	e.Queue = keyqueue.New("node", e.sync, "Port of a node not written into its Node; it is tried again, and the "+
		"node's next status has it")
	return e
}

// start lets TunnelFailed record events, with spawn, until the context ends.
func (e *Endpoints) start(ctx context.Context, spawn func(func())) { e.ctx, e.spawn = ctx, spawn }

// SetCloudcores sets what reports whether an address is another cloudcore's, before Start.
func (e *Endpoints) SetCloudcores(known func(address string) bool) { e.cloudcores = known }

// SetTunnels sets where callers reach nodes, before Start.
func (e *Endpoints) SetTunnels(t Tunnels) { e.tunnels = t }

// withEndpoint returns a strategic merge patch of a node's status with an endpoint in it: the address before the
// node's own, and the port instead of its own. Parts of the status that the patch does not have stay as they are.
func withEndpoint(patch []byte, address string, port int32) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(patch, &fields); err != nil {
		return nil, err
	}
	if fields["status"] == nil {
		return patch, nil
	}
	var status map[string]json.RawMessage
	if err := json.Unmarshal(fields["status"], &status); err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	if list := status["addresses"]; len(list) > 0 && string(list) != "null" {
		var addresses []json.RawMessage
		if err := json.Unmarshal(list, &addresses); err != nil {
			return nil, fmt.Errorf("status.addresses: %w", err)
		}
		own, err := json.Marshal(v1.NodeAddress{Type: v1.NodeInternalIP, Address: address})
		if err != nil {
			return nil, err
		}
		addresses = slices.DeleteFunc(addresses, func(text json.RawMessage) bool {
			var a v1.NodeAddress
			return json.Unmarshal(text, &a) == nil && a.Type == v1.NodeInternalIP && a.Address == address
		})
		if status["addresses"], err = json.Marshal(replacing(slices.Insert(addresses, 0, own))); err != nil {
			return nil, err
		}
	}
	dropOrder(status)
	var err error
	if status["daemonEndpoints"], err = json.Marshal(endpointsOf(port)); err != nil {
		return nil, err
	}
	if fields["status"], err = json.Marshal(status); err != nil {
		return nil, err
	}
	return json.Marshal(fields)
}

// replacing returns the elements of a list of addresses in a patch so that they replace the list: merged by their
// types, several of one type would become one, and the node would decide by other directives which one is first.
func replacing(addresses []json.RawMessage) []json.RawMessage {
	return append(slices.DeleteFunc(addresses, directive), json.RawMessage(`{"$patch":"replace"}`))
}

// dropOrder removes from the status of a patch what would say how to merge the addresses.
func dropOrder(status map[string]json.RawMessage) {
	maps.DeleteFunc(status, func(key string, _ json.RawMessage) bool {
		return strings.HasPrefix(key, "$") && strings.HasSuffix(key, "/addresses")
	})
}

// directive reports whether an element of a patch's list says how to apply the list.
func directive(element json.RawMessage) bool {
	var e struct {
		Patch string `json:"$patch"`
	}
	return json.Unmarshal(element, &e) == nil && e.Patch != ""
}

func endpointsOf(port int32) v1.NodeDaemonEndpoints {
	return v1.NodeDaemonEndpoints{KubeletEndpoint: v1.DaemonEndpoint{Port: port}}
}

// Complete gives the status that a node reports its endpoint, or removes one that is not its own.
func (e *Endpoints) Complete(node string, status *v1.NodeStatus) {
	if address, port, ok := e.tunnels.Endpoint(node, ownAddresses(status.Addresses)); ok {
		setEndpoint(status, address, port)
	} else {
		e.dropEndpoint(status)
	}
}

// setEndpoint does the same to a Node that registers.
func setEndpoint(status *v1.NodeStatus, address string, port int32) {
	status.Addresses = slices.DeleteFunc(slices.Clone(status.Addresses), func(a v1.NodeAddress) bool {
		return a.Type == v1.NodeInternalIP && a.Address == address
	})
	status.Addresses = slices.Insert(status.Addresses, 0, v1.NodeAddress{Type: v1.NodeInternalIP, Address: address})
	status.DaemonEndpoints = endpointsOf(port)
}

// ForDevice returns the copy of a Node that its device gets: with the device's own addresses first. The Node is not
// changed.
func (e *Endpoints) ForDevice(node *v1.Node) *v1.Node {
	if node == nil || !e.tunnels.Port(node.Status.DaemonEndpoints.KubeletEndpoint.Port) {
		return node
	}
	internal := func(a v1.NodeAddress) bool { return a.Type == v1.NodeInternalIP }
	list := node.Status.Addresses
	if first := slices.IndexFunc(list, internal); first != 0 || !slices.ContainsFunc(list[1:], internal) {
		return node
	}
	out := node.DeepCopy()
	last := len(list) - 1
	for !internal(list[last]) {
		last--
	}
	out.Status.Addresses = slices.Insert(out.Status.Addresses[1:], last, list[0])
	return out
}

// Tunnelled returns a patch of a node's status with its endpoint, if it has one.
func (e *Endpoints) Tunnelled(node string, patch []byte) ([]byte, error) {
	var fields struct {
		Status struct {
			Addresses []v1.NodeAddress `json:"addresses"`
		} `json:"status"`
	}
	if err := json.Unmarshal(patch, &fields); err != nil {
		return nil, err
	}
	own := ownAddresses(fields.Status.Addresses)
	if len(own) == 0 {
		own = e.knownAddresses(e.Caches.Node(node))
	}
	address, port, ok := e.tunnels.Endpoint(node, own)
	if !ok {
		return e.withoutEndpoint(e.Caches.Node(node), patch)
	}
	if known := e.Caches.Node(node); len(fields.Status.Addresses) == 0 && portAt(known, address) != port {
		if known == nil {
			return patch, nil
		}
		// The port alone would be one at another cloudcore's address, where it may be another node's.
		var err error
		if patch, err = withAddresses(patch, e.addressesOf(known)); err != nil {
			return nil, err
		}
	}
	return withEndpoint(patch, address, port)
}

// withoutEndpoint returns a patch of a node's status that says where callers reach the node itself. Ports of tunnels
// are never given on a node's word: a node that names one, or a port at another cloudcore's address, could get what is
// meant for another node after a restart of that cloudcore. It gets the usual port of a kubelet instead.
func (e *Endpoints) withoutEndpoint(known *v1.Node, patch []byte) ([]byte, error) {
	var fields, status map[string]json.RawMessage
	if err := json.Unmarshal(patch, &fields); err != nil {
		return nil, err
	}
	if fields["status"] == nil {
		return patch, nil
	}
	if err := json.Unmarshal(fields["status"], &status); err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	if status["addresses"] == nil && status["daemonEndpoints"] == nil {
		return patch, nil
	}
	var now v1.NodeStatus
	if known != nil {
		now = *known.Status.DeepCopy()
	}
	if list := status["addresses"]; list != nil {
		var addresses []json.RawMessage
		if err := json.Unmarshal(list, &addresses); err != nil {
			return nil, fmt.Errorf("status.addresses: %w", err)
		}
		addresses = replacing(addresses)
		list, err := json.Marshal(addresses)
		if err != nil {
			return nil, err
		}
		now.Addresses, status["addresses"] = nil, list
		for _, text := range addresses {
			var a v1.NodeAddress
			if err := kjson.Unmarshal(text, &a); err != nil {
				return nil, fmt.Errorf("status.addresses: %w", err)
			}
			now.Addresses = append(now.Addresses, a)
		}
	}
	if endpoints := status["daemonEndpoints"]; endpoints != nil {
		now.DaemonEndpoints = v1.NodeDaemonEndpoints{}
		if err := kjson.Unmarshal(endpoints, &now.DaemonEndpoints); err != nil {
			return nil, fmt.Errorf("status.daemonEndpoints: %w", err)
		}
	}
	e.dropEndpoint(&now)
	var err error
	if port := now.DaemonEndpoints.KubeletEndpoint.Port; port != 0 {
		if status["daemonEndpoints"], err = json.Marshal(endpointsOf(port)); err != nil {
			return nil, err
		}
	}
	dropOrder(status)
	if fields["status"], err = json.Marshal(status); err != nil {
		return nil, err
	}
	return json.Marshal(fields)
}

// dropEndpoint replaces a port in a status that only cloudcore may give.
func (e *Endpoints) dropEndpoint(status *v1.NodeStatus) {
	port := status.DaemonEndpoints.KubeletEndpoint.Port
	first := slices.IndexFunc(status.Addresses, func(a v1.NodeAddress) bool { return a.Type == v1.NodeInternalIP })
	if port != 0 && (e.tunnels.Port(port) || first >= 0 && e.cloudcores(status.Addresses[first].Address)) {
		status.DaemonEndpoints = endpointsOf(kubeletPort)
	}
}

// withAddresses returns a patch of a node's status with these addresses in it.
func withAddresses(patch []byte, addresses []v1.NodeAddress) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(patch, &fields); err != nil {
		return nil, err
	}
	if fields["status"] == nil {
		return patch, nil
	}
	var status map[string]json.RawMessage
	err := json.Unmarshal(fields["status"], &status)
	if err == nil {
		status["addresses"], err = json.Marshal(addresses)
	}
	if err == nil {
		fields["status"], err = json.Marshal(status)
	}
	if err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	return json.Marshal(fields)
}

// knownAddresses are the node's own in its Node.
func (e *Endpoints) knownAddresses(node *v1.Node) []netip.Addr {
	if node == nil {
		return nil
	}
	own := ownAddresses(node.Status.Addresses)
	if e.tunnels.Port(node.Status.DaemonEndpoints.KubeletEndpoint.Port) && len(own) > 0 {
		own = own[1:] // the first is cloudcore's
	}
	return own
}

// ownAddresses are the addresses that a node reports of itself.
func ownAddresses(list []v1.NodeAddress) (own []netip.Addr) {
	for _, a := range list {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == v1.NodeInternalIP {
			own = append(own, ip)
		}
	}
	return own
}

// TunnelPort returns the port that a Node has at an address; 0 is none. Of several Nodes with one port none has it.
func (e *Endpoints) TunnelPort(node, address string) int32 {
	port := portAt(e.Caches.Node(node), address)
	if port == 0 || len(e.Caches.NodesAt(address, port)) > 1 {
		return 0
	}
	return port
}

// TunnelPortNamed reports whether a Node has a port at an address.
func (e *Endpoints) TunnelPortNamed(address string, port int32) bool {
	return len(e.Caches.NodesAt(address, port)) > 0
}

// TunnelOpened writes the endpoint of a node that cannot report it into its Node, soon: a node that opens its tunnel
// again and again has it written once in endpointEvery. It does not block.
func (e *Endpoints) TunnelOpened(node string) { e.Keys.Add(node) }

// sync writes the endpoint of a node into its Node.
func (e *Endpoints) sync(ctx context.Context, node string) error {
	now := time.Now()
	reservation := e.writes.Of(node, now).ReserveN(now, 1)
	if wait := reservation.DelayFrom(now); wait > 0 {
		reservation.CancelAt(now)
		e.Keys.AddAfter(node, wait)
		return nil
	}
	ctx, cancel := context.WithTimeout(impersonate.WithNode(ctx, node), e.Timeout)
	defer cancel()
	err := e.writeEndpoint(ctx, node)
	if apierrors.IsNotFound(err) {
		return nil // its registration has the endpoint
	}
	return err
}

// writeEndpoint adds the endpoint of a node to its Node, if that has another one.
func (e *Endpoints) writeEndpoint(ctx context.Context, name string) error {
	node, err := e.AsNode.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	own := slices.Clone(e.ForDevice(node).Status.Addresses)
	address, port, ok := e.tunnels.Endpoint(name, e.knownAddresses(node))
	if !ok || portAt(node, address) == port {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"addresses": own}})
	if err == nil {
		patch, err = withEndpoint(patch, address, port)
	}
	if err == nil {
		_, err = e.AsNode.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, patch,
			metav1.PatchOptions{}, "status")
	}
	return err
}

func portAt(node *v1.Node, address string) int32 {
	if node == nil {
		return 0
	}
	for _, a := range node.Status.Addresses {
		if a.Type != v1.NodeInternalIP {
			continue
		}
		if a.Address == address {
			return node.Status.DaemonEndpoints.KubeletEndpoint.Port
		}
		break // only the first one counts
	}
	return 0
}

// endpointChanged reports Nodes that were deleted, or may have another endpoint.
func (e *Endpoints) endpointChanged(old, now *v1.Node) {
	if now == nil {
		e.tunnels.NodeChanged(old.Name)
		return
	}
	if old != nil && (old.UID != now.UID || !slices.Equal(old.Status.Addresses, now.Status.Addresses) ||
		old.Status.DaemonEndpoints != now.Status.DaemonEndpoints) {
		e.tunnels.NodeChanged(now.Name)
		e.tunnels.Restore(now.Name, offlineSince(now))
	}
}

// RestoreEndpoints opens the ports of the nodes that this cloudcore served before it was restarted.
func (e *Endpoints) RestoreEndpoints() {
	for _, n := range e.Caches.AllNodes() {
		e.tunnels.Restore(n.Name, offlineSince(n))
	}
}

// TunnelFailed records an event of a Node whose kubelet API cannot be reached, at most one in ten minutes. It does not
// block.
func (e *Endpoints) TunnelFailed(node, why string) {
	if now := time.Now(); e.ctx == nil || !e.events.Of(node, now).AllowN(now, 1) {
		return
	}
	e.spawn(func() {
		ctx, cancel := context.WithTimeout(impersonate.WithNode(e.ctx, node), e.Timeout)
		defer cancel()
		nodeevent.Record(ctx, e.AsNode, node, ReasonTunnelFailed, why)
	})
}
