package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
)

const (
	// takeoverEvery is how often cloudcore looks for nodes to take over, takeoverRate how many it takes over per
	// second.
	takeoverEvery = 15 * time.Second
	takeoverRate  = 10
	// takeoverMax is how many nodes it takes over before it looks again which cloudcores are alive.
	takeoverMax = 150
	// kubeletPort is the port that devices have if their configuration has no other.
	kubeletPort = 10250
)

// errNoPort means that this cloudcore has no port for a node.
var errNoPort = errors.New("no port for an offline node")

// Replicas knows which cloudcores are alive; see package replicas.
type Replicas interface {
	// Dead returns those of the addresses at which no cloudcore is alive. An error means that this is unknown for all.
	Dead(ctx context.Context, addresses []string) (map[string]bool, error)
	// Known reports whether an address is a cloudcore's, dead or alive. It knows those that the last Dead has found.
	Known(address string) bool
	// Address is the address of this cloudcore.
	Address() string
}

// TakeOver takes over offline nodes until ctx ends: it writes this cloudcore's endpoint into the Nodes that are offline
// and have the address of a cloudcore that is gone. Their callers then get an error that says so, instead of waiting
// for an address that does not answer. A node that connects gets its endpoint from the cloudcore that it connects to.
// The same is done to offline Nodes with this cloudcore's address and a port that is not in its range any longer.
//
// It changes a Node only if its condition Ready is Unknown: a cloudcore that serves the node would renew its lease. It
// changes only the resource version that it has read, so of several cloudcores one succeeds, and the others then see
// the address of a cloudcore that is alive.
func (e *Endpoints) TakeOver(ctx context.Context, replicas Replicas) {
	tick := time.NewTicker(takeoverEvery)
	defer tick.Stop()
	for {
		if taken, err := e.TakeOverNow(ctx, replicas); err != nil {
			klog.V(2).InfoS("Offline nodes not taken over", "err", err)
		} else if taken > 0 {
			klog.InfoS("Took over the endpoints of offline nodes whose cloudcore is gone", "nodes", taken)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// TakeOverNow takes over offline nodes once, and returns how many.
func (e *Endpoints) TakeOverNow(ctx context.Context, replicas Replicas) (taken int, err error) {
	orphans, err := e.orphans(ctx, e.Caches.AllNodes(), replicas)
	if err != nil {
		return 0, err
	}
	for _, node := range orphans[:min(len(orphans), takeoverMax)] {
		if err := e.takeovers.Wait(ctx); err != nil {
			return taken, err
		}
		if err := e.takeOverNode(ctx, node); err == nil {
			taken++
		} else if errors.Is(err, errNoPort) {
			return taken, err
		} else if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			klog.InfoS("Endpoint of an offline node not taken over: its Node still has the address of a dead cloudcore",
				"node", node.Name, "err", err)
		}
	}
	return taken, nil
}

// orphans returns the nodes that are offline and have the address of a cloudcore that is gone, in any order.
func (e *Endpoints) orphans(ctx context.Context, nodes []*v1.Node, replicas Replicas) ([]*v1.Node, error) {
	var offline []*v1.Node
	var addresses []string
	for _, n := range nodes {
		if address, _ := firstOfMany(n); address != "" && !e.Sessions.ConnectedHere(n.Name) && isUnknown(n) {
			offline, addresses = append(offline, n), append(addresses, address)
		}
	}
	if len(offline) == 0 {
		return nil, nil
	}
	slices.Sort(addresses)
	dead, err := replicas.Dead(ctx, slices.Compact(addresses))
	if err != nil {
		return nil, err
	}
	orphans := slices.DeleteFunc(offline, func(n *v1.Node) bool {
		address, _ := firstOfMany(n)
		switch port := n.Status.DaemonEndpoints.KubeletEndpoint.Port; {
		case e.tunnels.Port(port):
			return !dead[address]
		case port == kubeletPort:
			return true
		}
		// A port outside the range may be the device's own, or one of a cloudcore with another range.
		return address != replicas.Address() && !(dead[address] && replicas.Known(address))
	})
	// In random order, several cloudcores share the work instead of trying the same nodes.
	rand.Shuffle(len(orphans), func(i, j int) { orphans[i], orphans[j] = orphans[j], orphans[i] })
	return orphans, nil
}

// cloudAddress returns the address of a cloudcore that a Node has, and its index in the Node's addresses; "" means
// none.
func (e *Endpoints) cloudAddress(node *v1.Node) (string, int) {
	if !e.tunnels.Port(node.Status.DaemonEndpoints.KubeletEndpoint.Port) {
		return "", 0
	}
	return firstOfMany(node)
}

// firstOfMany returns the first of a Node's InternalIPs and its index in the Node's addresses. It returns "" for a Node
// with only one, which is reached directly: that address is the device's own.
func firstOfMany(node *v1.Node) (string, int) {
	internal := func(a v1.NodeAddress) bool { return a.Type == v1.NodeInternalIP }
	list := node.Status.Addresses
	first := slices.IndexFunc(list, internal)
	if first < 0 || !slices.ContainsFunc(list[first+1:], internal) {
		return "", 0
	}
	return list[first].Address, first
}

// addressesOf returns a copy of a Node's addresses, without the address of a cloudcore.
func (e *Endpoints) addressesOf(node *v1.Node) []v1.NodeAddress {
	list := slices.Clone(node.Status.Addresses)
	if address, first := e.cloudAddress(node); address != "" {
		list = slices.Delete(list, first, first+1)
	}
	return list
}

// takeOverNode opens a port for a node that is offline, and writes it into this version of its Node instead of the
// cloudcore's that is gone.
func (e *Endpoints) takeOverNode(ctx context.Context, node *v1.Node) error {
	ctx, cancel := context.WithTimeout(impersonate.WithNode(ctx, node.Name), e.Timeout)
	defer cancel()
	address, port, err := e.tunnels.Adopt(node.Name, node.Status.DaemonEndpoints.KubeletEndpoint.Port,
		offlineSince(node))
	if err != nil {
		return fmt.Errorf("%w: %w", errNoPort, err)
	}
	_, first := firstOfMany(node)
	own := slices.Delete(slices.Clone(node.Status.Addresses), first, first+1)
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion},
		"status":   map[string]any{"addresses": own},
	})
	if err == nil {
		patch, err = withEndpoint(patch, address, port)
	}
	if err == nil {
		_, err = e.AsNode.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch,
			metav1.PatchOptions{}, "status")
	}
	if err != nil {
		e.tunnels.NodeChanged(node.Name) // which closes the port
	}
	return err
}

// readyCondition returns the condition Ready of a Node, or nil.
func readyCondition(node *v1.Node) *v1.NodeCondition {
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == v1.NodeReady {
			return c
		}
	}
	return nil
}

// isUnknown reports whether a Node's condition Ready is Unknown, because its lease is no longer renewed.
func isUnknown(node *v1.Node) bool {
	ready := readyCondition(node)
	return ready != nil && ready.Status == v1.ConditionUnknown
}

// offlineSince returns when a Node's condition Ready became Unknown, or zero if it is not Unknown.
func offlineSince(node *v1.Node) time.Time {
	if isUnknown(node) {
		return readyCondition(node).LastTransitionTime.Time
	}
	return time.Time{}
}
