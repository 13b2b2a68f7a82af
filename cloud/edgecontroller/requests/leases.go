package requests

import (
	"context"
	"encoding/json"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/edgecore-io/edgecore/cloud/edgecontroller/impersonate"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/sessions"
	"github.com/edgecore-io/edgecore/cloud/edgecontroller/slots"
)

// leaseHandlers carry out requests about the leases of nodes.
type leaseHandlers struct{ asNode kubernetes.Interface }

// Leases renews the leases of nodes that are connected here.
type Leases struct {
	AsNode   kubernetes.Interface
	Caches   Caches
	Sessions *sessions.Sessions
	// Slots are apart from those of requests: neither waits for the other.
	Slots   slots.Semaphore
	Timeout time.Duration
}

// leaseSeconds is how long a node counts as alive after its lease was renewed, as with the kubelet.
const leaseSeconds = 40

func ownLease(r *request) error {
	if r.key.Namespace != v1.NamespaceNodeLease || r.key.Name != r.node {
		return forbidden(r.key, "node %s has one lease only, %s/%s", r.node, v1.NamespaceNodeLease, r.node)
	}
	return nil
}

func (h *leaseHandlers) queryLease(ctx context.Context, r *request) result {
	if err := ownLease(r); err != nil {
		return written(nil, err, false)
	}
	lease, err := h.asNode.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(ctx, r.node, metav1.GetOptions{})
	return written(lease, err, false)
}

// lease reads the node's lease out of a request.
func leaseOf(r *request) (*coordinationv1.Lease, error) {
	if err := ownLease(r); err != nil {
		return nil, err
	}
	lease, err := decode[coordinationv1.Lease](r, "Lease")
	if err != nil {
		return nil, err
	}
	if lease.Name != r.node || lease.Namespace != v1.NamespaceNodeLease {
		return nil, badRequest(r.key, "the content is lease %s/%s", lease.Namespace, lease.Name)
	}
	return lease, nil
}

func (h *leaseHandlers) createLease(ctx context.Context, r *request) result {
	lease, err := leaseOf(r)
	if err != nil {
		return written(nil, err, false)
	}
	lease, err = h.asNode.CoordinationV1().Leases(v1.NamespaceNodeLease).Create(ctx, lease,
		metav1.CreateOptions{})
	return written(lease, err, false)
}

func (h *leaseHandlers) updateLease(ctx context.Context, r *request) result {
	lease, err := leaseOf(r)
	if err != nil {
		return written(nil, err, false)
	}
	lease, err = h.asNode.CoordinationV1().Leases(v1.NamespaceNodeLease).Update(ctx, lease,
		metav1.UpdateOptions{})
	return written(lease, err, false)
}

// Heartbeat implements cloudhub.Upstream, mostly with one write and no read. A node that has just been registered gets
// a new lease. The lease of any other node is patched, or created if that fails because there is none.
func (l *Leases) Heartbeat(ctx context.Context, node string) error {
	leave, err := l.Slots.Acquire(ctx)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(impersonate.WithNode(ctx, node), l.Timeout)
	defer cancel()
	err = l.renew(ctx, node, time.Now())
	if err != nil && ctx.Err() == nil {
		// While the API server is away, this happens for every node every few seconds. Refusals that last are logged by
		// package apihealth.
		klog.V(2).InfoS("Lease of a node not renewed; it is tried again", "node", node, "err", err)
	}
	return err
}

func (l *Leases) renew(ctx context.Context, node string, now time.Time) error {
	spec := coordinationv1.LeaseSpec{
		HolderIdentity: ptr.To(node), LeaseDurationSeconds: ptr.To[int32](leaseSeconds),
		RenewTime: &metav1.MicroTime{Time: now},
	}
	owner := l.Caches.Node(node)
	if owner != nil && l.Sessions.TakeRegistered(node) {
		if err := l.createLeaseOf(ctx, owner, spec); !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	patch, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return err
	}
	_, err = l.AsNode.CoordinationV1().Leases(v1.NamespaceNodeLease).Patch(ctx, node, types.MergePatchType,
		patch, metav1.PatchOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	if owner == nil {
		return nil // the node is not registered yet, or was deleted: it gets no lease
	}
	return l.createLeaseOf(ctx, owner, spec)
}

// createLeaseOf creates the lease of a node, which is removed with its Node.
func (l *Leases) createLeaseOf(ctx context.Context, node *v1.Node, spec coordinationv1.LeaseSpec) error {
	_, err := l.AsNode.CoordinationV1().Leases(v1.NamespaceNodeLease).Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name:            node.Name,
			Namespace:       v1.NamespaceNodeLease,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
		},
		Spec: spec,
	}, metav1.CreateOptions{})
	return err
}
