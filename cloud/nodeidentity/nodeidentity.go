// Package nodeidentity decides which certificate may act as which Node.
//
// The CA issues a certificate for a name to anyone with a join token. Whether a Node of that name exists is decided
// later, and by others. This package promises:
//
//   - A certificate speaks for no Node that was not registered through a cloudcore, such as a server's: its connections
//     are refused, none of the Node's objects is sent, and nothing is done in its name. That holds even if the Node is
//     created after the connection.
//   - If several devices have certificates of one name, only the first to connect speaks for the Node: a label of the
//     Node names the holder, and all others are refused. A device that joins later with a token for only that node
//     replaces it.
//
// The label is all that is stored. NodeRestriction keeps nodes from changing such labels on themselves.
package nodeidentity

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/cloud/apihealth"
	"github.com/edgecore-io/edgecore/cloud/cloudhub"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/marks"
	"github.com/edgecore-io/edgecore/pkg/certs"
	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// HolderLabel names the device that a Node belongs to, as its certificates do (certs.HolderOf).
const HolderLabel = certs.HolderLabel

const (
	// DefaultLookupsPerSource is how many API server lookups a second one source may cause, for names that no device's
	// Node has: for new connections and for requests of registering nodes, each. A join takes about five. One source
	// leaves most lookups to others, although a site of hundreds of devices may be behind one address.
	DefaultLookupsPerSource = 20
	// namePerSource times the source's limit is the limit of one name for all sources together. It is higher than a
	// source's, so that one source cannot use up another's name. allPerSource times it is the total limit.
	namePerSource, allPerSource = 1.5, 5
	// lookupBurst is for how many seconds unused lookups accumulate.
	lookupBurst = 10
	// lookupTimeout is the timeout of one request.
	lookupTimeout = 5 * time.Second
	// permitFor is how long the permission of a request lasts: what it waits for before it is carried out rarely takes
	// longer, and is asked about again if it does.
	permitFor = time.Second
	// maxRaces is how often writing a label is retried because the Node changed meanwhile.
	maxRaces = 10
	// bindRetry is the pause after failing to write a label.
	bindRetry = 5 * time.Second
)

// API is the part of the API server's client that this package uses, in cloudcore's own name; client-go's typed client
// implements it.
type API interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*v1.Node, error)
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions,
		subresources ...string) (*v1.Node, error)
}

// Hub is the part of the hub that this package uses.
type Hub interface {
	Certificate(node string) *x509.Certificate
	RecheckNode(node string)
	Disconnect(node, reason string)
	Source(node string) netip.Prefix
}

// Options configures a Guard.
type Options struct {
	// Revoked returns an error for a certificate that is revoked.
	Revoked func(node string, cert *x509.Certificate) error
	// Edge returns a device's Node from memory, or nil.
	Edge  func(name string) *v1.Node
	Nodes API
	// LookupsPerSource is how many lookups a second one source may cause; 0 is DefaultLookupsPerSource.
	LookupsPerSource int
}

// Guard is the hub's gate (cloudhub.Gate), and wraps its Upstream and Downstream.
type Guard struct {
	opts              Options
	dials, registrars lookups
	hub               Hub
	wake              notify.Signal // set while unbound is not empty

	mu      sync.Mutex
	unbound map[string]bool // Nodes with a session that need the label
}

var _ cloudhub.Gate = (*Guard)(nil)

// New makes a Guard. Call SetHub before its first use.
func New(opts Options) *Guard {
	perSource := cmp.Or(opts.LookupsPerSource, DefaultLookupsPerSource)
	return &Guard{
		opts:  opts,
		dials: newLookups(perSource), registrars: newLookups(perSource),
		wake: notify.NewSignal(), unbound: map[string]bool{},
	}
}

// SetHub sets the hub.
func (g *Guard) SetHub(hub Hub) { g.hub = hub }

// Run labels Nodes that were registered over open connections, until ctx ends.
func (g *Guard) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.wake:
		}
		failed := false
		for _, node := range g.takeUnbound() {
			if err := g.bindConnected(ctx, node); err != nil && ctx.Err() == nil {
				klog.V(1).InfoS("Node not labelled with its device; trying again", "node", node, "in", bindRetry,
					"err", err)
				g.addUnbound(node)
				failed = true
			}
		}
		if failed && !retry.Sleep(ctx, bindRetry) {
			return nil
		}
	}
}

// addUnbound makes Run label a Node.
func (g *Guard) addUnbound(node string) {
	g.mu.Lock()
	g.unbound[node] = true
	g.mu.Unlock()
	g.wake.Notify()
}

func (g *Guard) takeUnbound() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	nodes := slices.Collect(maps.Keys(g.unbound))
	clear(g.unbound)
	return nodes
}

func (g *Guard) bindConnected(ctx context.Context, name string) error {
	node, cert := g.opts.Edge(name), g.hub.Certificate(name)
	if node == nil || cert == nil {
		return nil
	}
	bind, err := authorize(node, cert)
	if err != nil || !bind {
		return nil // recheck ends the session
	}
	return g.bind(ctx, node, cert)
}

// Permit returns an error if nothing may be done in a node's name now. It asks the API server as long as the Node is
// not known as a device's: while it registers, or if a Node of another kind took the name. In the latter case the
// session ends. It does not ask again for a request that it has permitted within permitFor (withPermit).
func (g *Guard) Permit(ctx context.Context, name string) error {
	if g.opts.Edge(name) != nil || permitted(ctx, time.Now()) {
		return nil
	}
	node, err := g.lookUp(ctx, g.registrars, name, g.hub.Source(name))
	if cert := g.hub.Certificate(name); err == nil && node != nil && cert != nil {
		_, err = authorize(node, cert)
	}
	if err != nil && !errors.Is(err, cloudhub.ErrTryLater) {
		klog.InfoS("Connection ended", "node", name, "why", err)
		g.hub.Disconnect(name, err.Error())
	}
	return err
}

// Labels returns the label for registering the Node of a connected device.
func (g *Guard) Labels(node string) map[string]string {
	if cert := g.hub.Certificate(node); cert != nil {
		if holder := certs.HolderOf(cert); holder != "" {
			return map[string]string{HolderLabel: holder}
		}
	}
	return nil
}

// NodeChanged handles a device's Node that is new or whose labels changed. It does not block.
func (g *Guard) NodeChanged(node *v1.Node) {
	// A connection for the API may have another certificate, or be here without the session.
	g.hub.RecheckNode(node.Name)
	cert := g.hub.Certificate(node.Name)
	if cert == nil {
		return
	}
	if bind, err := authorize(node, cert); err == nil && bind {
		g.addUnbound(node.Name)
	}
}

// authorize decides whether a certificate may speak for a device's Node, and whether the Node must be labelled with the
// certificate's holder.
func authorize(node *v1.Node, cert *x509.Certificate) (bind bool, _ error) {
	holder, of := certs.HolderOf(cert), node.Labels[HolderLabel]
	switch {
	case of == "":
		return holder != "", nil
	case holder == of:
		return false, nil
	case certs.Supersedes(holder, of):
		return true, nil
	}
	return false, fmt.Errorf("node %s belongs to another device, or to another join of this one (%s, and not %s): "+
		"if this device is to be the node, get a token with `cloudcore gettoken --node %s --replace` "+
		"and run `edgecore join` with it on the device. "+
		"If it is refused even then, the earlier device joined while cloudcore's clock was ahead: kubectl label node "+
		"%s %s-",
		node.Name, of, named(holder), node.Name, node.Name, HolderLabel)
}

func named(holder string) string {
	if holder == "" {
		return "a certificate that names no device"
	}
	return holder
}

// Check implements cloudhub.Gate. Memory does not know Nodes that are not a device's: Handle asks for those.
func (g *Guard) Check(node string, cert *x509.Certificate) error {
	if err := g.opts.Revoked(node, cert); err != nil {
		return err
	}
	if n := g.opts.Edge(node); n != nil {
		_, err := authorize(n, cert)
		return err
	}
	return nil
}

// Admit implements cloudhub.Gate.
func (g *Guard) Admit(ctx context.Context, name string, cert *x509.Certificate, from netip.Prefix) error {
	if err := g.opts.Revoked(name, cert); err != nil {
		return err
	}
	node := g.opts.Edge(name)
	if node == nil {
		var err error
		if node, err = g.lookUp(ctx, g.dials, name, from); err != nil || node == nil {
			return err
		}
	}
	bind, err := authorize(node, cert)
	if err != nil || !bind {
		return err
	}
	err = g.bind(ctx, node, cert)
	if err != nil && node.Labels[HolderLabel] == "" {
		klog.V(1).InfoS("Node not labelled with its device yet", "node", name, "err", err)
		return nil // no other device holds it; Run labels it
	}
	return err
}

// lookUp asks the API server for a Node that is not known as a device's. It returns nil if there is none: the node may
// register then. A Node that is not a device's is an error.
func (g *Guard) lookUp(ctx context.Context, limits lookups, name string, from netip.Prefix) (*v1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	later := func(err error) error {
		return fmt.Errorf("cannot tell whether node %s belongs to a device: %w: %w", name, err, cloudhub.ErrTryLater)
	}
	if err := limits.wait(ctx, name, from); err != nil {
		return nil, later(err)
	}
	node, err := g.opts.Nodes.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, later(err)
	}
	if value, edge := node.Labels[marks.EdgeLabel]; edge && value == "" {
		return node, nil
	}
	return nil, fmt.Errorf("the cluster has a node %s that did not join through cloudcore (it has no label %s): no "+
		"device may speak for it. "+
		"Join under another name (edgecore join --edgenode-name); if the node is this device's, label it: kubectl "+
		"label node %s %s=",
		name, marks.EdgeLabel, name, marks.EdgeLabel)
}

// bind labels a Node with the holder of a certificate that authorize accepted. If another writer is faster, its holder
// has the Node.
func (g *Guard) bind(ctx context.Context, node *v1.Node, cert *x509.Certificate) error {
	name, holder := node.Name, certs.HolderOf(cert)
	for range maxRaces {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": node.UID, "resourceVersion": node.ResourceVersion, "labels": map[string]string{HolderLabel: holder},
		}})
		if err != nil {
			return err
		}
		_, err = g.opts.Nodes.Patch(apihealth.ForNode(ctx, name), name, types.MergePatchType, patch,
			metav1.PatchOptions{})
		switch {
		case err == nil:
			klog.InfoS("Node belongs to the device that holds its certificate", "node", name, "holder", holder,
				"before", node.Labels[HolderLabel])
			return nil
		case !apierrors.IsConflict(err):
			return fmt.Errorf("label node %s with its device: %w: %w", name, err, cloudhub.ErrTryLater)
		}
		if node, err = g.opts.Nodes.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("label node %s with its device: %w: %w", name, err, cloudhub.ErrTryLater)
		}
		bind, err := authorize(node, cert)
		if err != nil || !bind {
			return err
		}
	}
	return fmt.Errorf("label node %s with its device: it keeps changing: %w", name, cloudhub.ErrTryLater)
}
