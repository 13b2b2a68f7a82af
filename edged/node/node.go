// Package node keeps this device known to the cloud as a Node: it registers it, keeps its status current, and
// renews its lease. Pods do not depend on any of it: what fails, for want of a link or for any other
// reason, is tried again, and at once when there is a link.
package node

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// Cloud is what the loop needs of the cloud; see package metaclient.
type Cloud interface {
	RegisterNode(ctx context.Context, node *v1.Node) (*v1.Node, error)
	Node(ctx context.Context, name string) (*v1.Node, error)
	UpdateNode(ctx context.Context, node *v1.Node) error
	PatchNodeStatus(ctx context.Context, name string, patch []byte) error
	Lease(ctx context.Context, name string) (*coordinationv1.Lease, error)
	CreateLease(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error)
	UpdateLease(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error)
}

// Options say what the node is.
type Options struct {
	Name        string
	Labels      map[string]string
	Taints      []v1.Taint
	Schedulable bool
	PodCIDR     string
	// Register makes the Node where there is none.
	Register bool
	// Check is how often the status is looked at, Report how often it is told though it is what it was,
	// Lease how long the lease lasts.
	Check, Report, Lease time.Duration
	// Status returns all of the status but its conditions.
	Status func() v1.NodeStatus
	// Unready says why the node cannot run pods; nil that it can.
	Unready func() error
	// Conditions, which may be nil, are those beside Ready that do not hold on every healthy node: pressure of the disk,
	// say. Their times are worked out here.
	Conditions func() []v1.NodeCondition
	// Changed, which may be nil, is told of conditions that are not what they were, with those before; there are none
	// before the first.
	Changed func(before, now []v1.NodeCondition)
	// Found, which may be nil, is told of the Node as the cloud has it from an earlier life of this device.
	Found func(have *v1.Node)
}

// Node is the loop. It keeps nothing on the disk: all of it is made anew.
type Node struct {
	opts  Options
	cloud Cloud
	woken chan struct{}
	// looked: the state may be another, and is told if it is.
	looked chan struct{}

	registered bool
	// told is the status that the cloud has, toldAt when it was told; nil when it is to be told at once.
	told   *v1.NodeStatus
	toldAt time.Time
	// conditions are those of the newest status.
	conditions []v1.NodeCondition
	// owner is the Node of the cloud, of which the lease is a part.
	owner *v1.Node
	// lease is the newest one that the cloud confirmed, renewedAt when; nil when it is to be read.
	lease     *coordinationv1.Lease
	renewedAt time.Time
}

// New makes a loop.
func New(cloud Cloud, opts Options) *Node {
	return &Node{opts: opts, cloud: cloud, woken: make(chan struct{}, 1), looked: make(chan struct{}, 1)}
}

// Wake has everything told anew: there is a link again, or the runtime's state has changed.
func (n *Node) Wake() {
	select {
	case n.woken <- struct{}{}:
	default:
	}
}

// Look has the state looked at, and told if it is another than was told.
func (n *Node) Look() {
	select {
	case n.looked <- struct{}{}:
	default:
	}
}

// Run keeps the Node until ctx ends.
func (n *Node) Run(ctx context.Context) error {
	period := min(n.opts.Check, leaseAge(n.opts.Lease))
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		n.keep(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-n.woken:
			n.told = nil
		case <-n.looked:
		case <-tick.C:
		}
	}
}

// keep does what is to be done now.
func (n *Node) keep(ctx context.Context) {
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{{"register node", n.register}, {"report node status", n.report}, {"renew node lease", n.renew}} {
		if err := step.do(ctx); err != nil {
			if ctx.Err() == nil {
				klog.V(2).InfoS("Not done yet; trying again", "what", step.what, "node", n.opts.Name, "err", err)
			}
			return
		}
	}
}

// register makes the Node, or puts our labels on the one that is there.
func (n *Node) register(ctx context.Context) error {
	if n.registered || !n.opts.Register {
		return nil
	}
	status := n.status()
	have, err := n.cloud.RegisterNode(ctx, object(&n.opts, status))
	if apierrors.IsAlreadyExists(err) {
		if have, err = n.cloud.Node(ctx, n.opts.Name); err == nil {
			if n.opts.Found != nil {
				n.opts.Found(have)
			}
			if own := relabelled(have, Labels(n.opts.Name, n.opts.Labels)); own != nil {
				err = n.cloud.UpdateNode(ctx, own)
			}
		}
	}
	if err != nil {
		return err
	}
	klog.InfoS("Node registered", "node", n.opts.Name, "uid", have.UID)
	n.registered, n.told, n.owner = true, nil, have
	if n.conditions == nil {
		n.conditions = have.Status.Conditions // since when they are so
	}
	return nil
}

// status is the status as it is now.
func (n *Node) status() v1.NodeStatus {
	unready := n.opts.Unready() // first: a node that is ready has all that the rest of the status tells
	status := n.opts.Status()
	var more []v1.NodeCondition
	if n.opts.Conditions != nil {
		more = n.opts.Conditions()
	}
	before := n.conditions
	n.conditions = conditions(unready, more, before, metav1.Now())
	status.Conditions = n.conditions
	if n.opts.Changed != nil {
		n.opts.Changed(before, n.conditions)
	}
	return status
}

// report tells the status when it has changed, and now and then.
func (n *Node) report(ctx context.Context) error {
	status := n.status()
	say := patch
	if !changed(n.told, &status) {
		if time.Since(n.toldAt) < n.opts.Report {
			return nil
		}
		say = stillSo
	}
	text, err := say(&status)
	if err != nil {
		return err
	}
	if err := n.cloud.PatchNodeStatus(ctx, n.opts.Name, text); err != nil {
		if apierrors.IsNotFound(err) {
			n.registered, n.lease = false, nil // somebody deleted the Node: it is made again
		}
		return err
	}
	n.told, n.toldAt = &status, time.Now()
	return nil
}

// renew renews the lease, and makes it where there is none.
func (n *Node) renew(ctx context.Context) error {
	if n.lease != nil && time.Since(n.renewedAt) < leaseAge(n.opts.Lease) {
		return nil
	}
	lease, err := n.nextLease(ctx)
	if err != nil {
		n.lease = nil // it may have changed: read it again
		return err
	}
	n.lease, n.renewedAt = lease, time.Now()
	return nil
}

func (n *Node) nextLease(ctx context.Context) (*coordinationv1.Lease, error) {
	have := n.lease
	if have == nil {
		var err error
		if have, err = n.cloud.Lease(ctx, n.opts.Name); apierrors.IsNotFound(err) {
			return n.cloud.CreateLease(ctx, n.newLease())
		} else if err != nil {
			return nil, err
		}
	}
	next := have.DeepCopy()
	next.TypeMeta = metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}
	next.Spec = n.newLease().Spec
	next.Spec.RenewTime = &metav1.MicroTime{Time: renewTime(time.Now(), have.Spec.RenewTime, leaseAge(n.opts.Lease))}
	return n.cloud.UpdateLease(ctx, next)
}

// renewTime is what a renewal is dated. Whoever watches the lease believes in a renewal that is newer than the one
// before: a device whose clock has gone back since, to 1970 say, goes on from there.
func renewTime(now time.Time, before *metav1.MicroTime, step time.Duration) time.Time {
	if before == nil || now.After(before.Time) {
		return now
	}
	return before.Add(step)
}

func (n *Node) newLease() *coordinationv1.Lease {
	lease := &coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Name: n.opts.Name, Namespace: "kube-node-lease"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &n.opts.Name, LeaseDurationSeconds: ptr.To(int32(n.opts.Lease / time.Second)), RenewTime: &metav1.MicroTime{Time: time.Now()},
		},
	}
	if n.owner != nil {
		lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.owner.Name, UID: n.owner.UID}}
	}
	return lease
}
