// Package node keeps this device's Node in the cloud: it registers it, keeps its status current, and renews its lease.
// Pods do not depend on any of it: what fails, for want of a link or for any other reason, is tried again, and at once
// when there is a link.
package node

import (
	"context"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/notify"
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
	// Check is how often the status is compared with the reported one, Report how often an unchanged status is
	// reported, and Lease the duration of the lease.
	Check, Report, Lease time.Duration
	// Status returns all of the status but its conditions.
	Status func() v1.NodeStatus
	// Unready says why the node cannot run pods; nil that it can.
	Unready func() error
	// Conditions, which may be nil, are those beside Ready that do not hold on every healthy node: pressure of the
	// disk, say. Their times are worked out here.
	Conditions func() []v1.NodeCondition
	// Changed, which may be nil, is called with changed conditions; before is empty the first time.
	Changed func(before, now []v1.NodeCondition)
	// Found, which may be nil, is called with the Node that the cloud already had when the agent started.
	Found func(have *v1.Node)
	// Forgotten, which may be nil, reports whether this device does not remember which extended resources it had: those
	// of the Node are reported as 0 until their plugins are back. Reported, which may be nil, is called with each
	// status that the cloud took.
	Forgotten func() bool
	Reported  func(*v1.NodeStatus)
	// LabelsLeftOut, which may be nil, is called with the labels of the configuration that the cloud did not take, in
	// order; with none once the Node has all of them.
	LabelsLeftOut func(keys []string)
	// Signals, which may be the zero value, are those of the parts that were made before the Node.
	Signals Signals
}

// Signals tell the Node that something about the device has changed. They are made before the Node, for the parts whose
// state it reports. Without a Node nobody receives them.
type Signals struct{ woken, looked notify.Signal }

// NewSignals returns Signals without a notification.
func NewSignals() Signals { return Signals{woken: notify.NewSignal(), looked: notify.NewSignal()} }

// Wake requests a report of the Node's whole status: there is a link again, or the runtime's state has changed.
func (s Signals) Wake() { s.woken.Notify() }

// Look requests a comparison of the status with the reported one, and a report if they differ.
func (s Signals) Look() { s.looked.Notify() }

// Node keeps the Node and its lease, each in a loop of its own: a Node that cannot be updated is alive all the same. It
// keeps nothing on the disk.
type Node struct {
	Signals
	opts  Options
	cloud Cloud
	lease *lease

	registered bool
	// read: the Node was read since the start; stale: it may have been changed while there was no link.
	read, stale bool
	// reported is the status that the cloud has, nil if it must be reported at once; reportedAt is when it was
	// reported.
	reported   *v1.NodeStatus
	reportedAt time.Time
	// conditions are those of the newest status, in the Node or told.
	conditions []v1.NodeCondition
	// listed are the resources that the Node lists, or listed.
	listed v1.ResourceList
}

// New makes a loop.
func New(cloud Cloud, opts Options) *Node {
	if opts.Signals.woken == nil {
		opts.Signals = NewSignals()
	}
	return &Node{Signals: opts.Signals, opts: opts, cloud: cloud, lease: newLease(cloud, opts.Name, opts.Lease)}
}

// Run keeps the Node until ctx ends.
func (n *Node) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	first := make(chan struct{})
	wg.Go(func() { n.lease.runAfter(ctx, first) })
	n.syncNode(ctx) // first: the lease belongs to the Node, which may be new
	close(first)
	tick := time.NewTicker(n.opts.Check)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.woken:
			n.reported = nil
			n.stale = n.lease.lapsed() || n.stale
		case <-n.looked:
		case <-tick.C:
		}
		n.syncNode(ctx)
		n.lease.retryNow.Notify()
	}
}

// syncNode registers the Node, and reports its status, as far as either is due.
func (n *Node) syncNode(ctx context.Context) {
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{{"register node", n.register}, {"report node status", n.report}} {
		if err := step.do(ctx); err != nil {
			if ctx.Err() == nil {
				klog.V(2).InfoS("Not done yet; trying again", "what", step.what, "node", n.opts.Name, "err", err)
			}
			if !n.registered && n.opts.Register && !n.read {
				return // there is no Node that has a status
			}
		}
	}
}

// register makes the Node, or puts our labels on the one that is there. A Node whose labels cannot be changed has its
// status reported all the same.
func (n *Node) register(ctx context.Context) error {
	if n.registered || !n.opts.Register {
		return nil
	}
	have, err := n.cloud.RegisterNode(ctx, object(&n.opts, n.status()))
	if apierrors.IsAlreadyExists(err) {
		if have, err = n.reread(ctx); err == nil {
			err = n.relabel(ctx, have)
		}
	} else if err == nil {
		n.lease.setOwner(have)
		n.checkLabels(have)
	}
	if err != nil {
		return err
	}
	klog.InfoS("Node registered", "node", n.opts.Name, "uid", have.UID)
	n.registered, n.read, n.reported = true, true, nil
	return nil
}

// relabel puts our labels on a Node that lacks some of them.
func (n *Node) relabel(ctx context.Context, have *v1.Node) error {
	own := relabelled(have, Labels(n.opts.Name, n.opts.Labels))
	if own == nil {
		n.checkLabels(have)
		return nil
	}
	if err := n.cloud.UpdateNode(ctx, own); err != nil {
		return err
	}
	have, err := n.cloud.Node(ctx, n.opts.Name)
	if err != nil {
		return err
	}
	n.checkLabels(have)
	return nil
}

// checkLabels reports which labels of the configuration a Node lacks.
func (n *Node) checkLabels(have *v1.Node) {
	if n.opts.LabelsLeftOut != nil && n.opts.Register {
		n.opts.LabelsLeftOut(missing(have.Labels, n.opts.Labels))
	}
}

// reread reads the Node as the cloud has it, and goes on from its conditions: since when they hold, and that a
// controller has taken the node for lost. Events tell of those that have changed.
func (n *Node) reread(ctx context.Context) (*v1.Node, error) {
	have, err := n.cloud.Node(ctx, n.opts.Name)
	if err != nil {
		return nil, err
	}
	if !n.read && n.opts.Found != nil {
		n.opts.Found(have)
	}
	n.lease.setOwner(have)
	if n.registered {
		n.checkLabels(have)
	}
	n.conditions, n.listed = have.Status.Conditions, have.Status.Capacity
	n.read, n.stale = true, false
	return have, nil
}

// status is the status as it is now.
func (n *Node) status() v1.NodeStatus {
	unready := n.opts.Unready() // first: a node that is ready has all that the rest of the status tells
	status := n.opts.Status()
	var more []v1.NodeCondition
	if n.opts.Conditions != nil {
		more = n.opts.Conditions()
	}
	status.Conditions = conditions(unready, more, n.conditions, metav1.Now())
	if n.opts.Forgotten != nil && n.opts.Forgotten() {
		zeroForgotten(&status, n.listed)
	}
	return status
}

// report reports the status when it has changed, and at intervals.
func (n *Node) report(ctx context.Context) error {
	if !n.read || n.stale {
		if _, err := n.reread(ctx); err != nil && !n.read {
			return err
		}
	}
	status, before := n.status(), n.conditions
	n.conditions = status.Conditions
	if n.opts.Changed != nil {
		n.opts.Changed(before, n.conditions)
	}
	say := n.patch
	if !changed(n.reported, &status) {
		if time.Since(n.reportedAt) < n.opts.Report {
			return nil
		}
		say = stillSo
	}
	text, err := say(&status)
	if err != nil {
		return err
	}
	if err := n.cloud.PatchNodeStatus(ctx, n.opts.Name, text); err != nil {
		if apierrors.IsNotFound(err) { // the Node was deleted: create it again
			n.registered, n.read = false, false
			n.lease.setOwner(nil)
		}
		return err
	}
	n.reported, n.reportedAt = &status, time.Now()
	for name, q := range status.Capacity {
		if n.listed == nil {
			n.listed = v1.ResourceList{}
		}
		n.listed[name] = q
	}
	if n.opts.Reported != nil {
		n.opts.Reported(&status)
	}
	return nil
}

// patch is the patch that makes a status the Node's.
func (n *Node) patch(status *v1.NodeStatus) ([]byte, error) { return patch(status, n.listed) }
