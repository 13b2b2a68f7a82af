// Package replicas finds out which cloudcores are alive. Each cloudcore that makes nodes reachable for callers keeps a
// Lease in cloudcore's namespace, which is named after the address that callers connect to.
//
// It promises:
//
//   - An address counts as dead only if its Lease has been released, or if this cloudcore has looked for a minute and
//     the Lease was not renewed or did not exist. Clocks are not compared. Time without an answer of kube-apiserver is
//     no time in which it looked: after 30 s of that, the minute begins again.
//   - A cloudcore that has not renewed its own Lease for 30 s declares no other dead, since the others may soon count
//     it as dead itself.
//   - A cloudcore that stops releases its Lease: it removes the holder and leaves the Lease, so that the others can
//     tell it from a cloudcore that has no Lease yet, or one of a version without Leases. It leaves its Lease to expire
//     if it is not the last one that has written it, or has found another holder in it within a minute: that may be a
//     cloudcore at the same address that is alive.
//   - Leases that nobody has renewed for a day are deleted by the next cloudcore that starts.
package replicas

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/klog/v2"
)

const (
	// Every is how often a Lease is renewed and the others are read, and expire how long after the last renewal its
	// cloudcore counts as dead.
	Every  = 15 * time.Second
	expire = time.Minute
	// forget is the time between two successful looks after which what was seen before counts no longer.
	forget = 2 * Every
	// requestTimeout limits a request to kube-apiserver.
	requestTimeout = 10 * time.Second
	// leftoverAge is the age of Leases that nobody renews and the next cloudcore deletes.
	leftoverAge = 24 * time.Hour
	// label marks the Leases, with the value endpoint.
	label = "edgecore.io/cloudcore"
	value = "endpoint"
)

// Selector selects the Leases of cloudcores.
const Selector = label + "=" + value

// Replicas keeps the Lease of this cloudcore and reads those of the others. Its methods may be called from any
// goroutine.
type Replicas struct {
	leases  coordination.LeaseInterface
	address string
	// holder is this process: another one may have the same address.
	holder string

	// own is the Lease as this cloudcore has written it last; nil means that this is unknown. contested is when it last
	// found another holder in it. Only Run uses them.
	own       *coordinationv1.Lease
	contested time.Time

	mu sync.Mutex
	// renewed is when this cloudcore's Lease was renewed last.
	renewed time.Time
	// asked are the names of the Leases that Dead was asked about last.
	asked []string
	// seen is what was seen of each Lease, by its name, at the time looked.
	seen   map[string]sight
	looked time.Time
}

// sight is what was seen of a Lease, and since when it is so.
type sight struct {
	lease
	since time.Time
}

// lease is what counts of a Lease. The zero value is one that does not exist.
type lease struct {
	// renewed is the time of the renewal in microseconds, as the Lease has it.
	renewed  int64
	released bool
}

// New returns the Replicas of a cloudcore that callers reach at address. leases is the client for cloudcore's
// namespace.
func New(leases coordination.LeaseInterface, address string) *Replicas {
	return &Replicas{leases: leases, address: address, holder: address + "_" + rand.Text()}
}

// nameOf returns the name of the Lease of an address.
func nameOf(address string) string {
	return "cloudcore-" + strings.Trim(strings.NewReplacer(".", "-", ":", "-").Replace(address), "-")
}

// Run keeps the Lease until ctx ends, and then releases it.
func (r *Replicas) Run(ctx context.Context) {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	failing, swept := false, false
	for ctx.Err() == nil {
		err := r.renew(ctx)
		if err != nil && !failing {
			klog.ErrorS(err, "Lease of this cloudcore not renewed: it takes over no nodes, and another cloudcore "+
				"may take over its offline nodes")
		}
		failing = err != nil
		if leases, err := r.list(ctx); err == nil { // Dead returns the error
			r.mu.Lock()
			r.recordLeases(leases, time.Now())
			r.mu.Unlock()
			if !swept {
				swept = true
				r.sweep(ctx, leases)
			}
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	if err := r.release(ctx); err != nil {
		klog.V(1).InfoS("Lease of this cloudcore not released; it expires", "err", err)
	}
}

// renew renews the Lease, or creates it. It completes requests when ctx ends, so that it is known what was written.
func (r *Replicas) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	began := time.Now()
	written, err := r.write(ctx, began)
	if err != nil {
		r.own = nil
		return fmt.Errorf("renew lease %s: %w", nameOf(r.address), err)
	}
	r.own = written
	r.mu.Lock()
	defer r.mu.Unlock()
	r.renewed = began
	return nil
}

// write writes the Lease with the time of its renewal, and returns it as it is then.
func (r *Replicas) write(ctx context.Context, now time.Time) (*coordinationv1.Lease, error) {
	if r.own != nil {
		written, err := r.update(ctx, r.own, now)
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return written, err
		}
	}
	found, err := r.leases.Get(ctx, nameOf(r.address), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		created := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: nameOf(r.address)}}
		return r.leases.Create(ctx, r.claim(created, now), metav1.CreateOptions{})
	}
	if err != nil {
		return nil, err
	}
	if by := holderOf(found); by != "" && by != r.holder {
		if r.hasRenewed() && now.Sub(r.contested) > expire {
			klog.InfoS("Another cloudcore has the same address: callers reach only one of them. Give each its own "+
				"(modules.cloudStream.address)", "address", r.address, "lease", found.Name, "holder", by)
		}
		r.contested = now
	}
	return r.update(ctx, found, now)
}

// holderOf returns the holder of a Lease; "" means that it is released.
func holderOf(l *coordinationv1.Lease) string {
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

func (r *Replicas) update(
	ctx context.Context, l *coordinationv1.Lease, now time.Time,
) (*coordinationv1.Lease, error) {
	return r.leases.Update(ctx, r.claim(l.DeepCopy(), now), metav1.UpdateOptions{})
}

// claim makes a Lease this cloudcore's.
func (r *Replicas) claim(l *coordinationv1.Lease, now time.Time) *coordinationv1.Lease {
	seconds := int32(expire / time.Second)
	metav1.SetMetaDataLabel(&l.ObjectMeta, label, value)
	l.Spec = coordinationv1.LeaseSpec{
		HolderIdentity: &r.holder, LeaseDurationSeconds: &seconds, RenewTime: &metav1.MicroTime{Time: now},
	}
	return l
}

func (r *Replicas) hasRenewed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.renewed.IsZero()
}

// release removes the holder of the Lease, if it is as this cloudcore has written it last. It leaves a Lease on which
// another process with the same address may depend.
func (r *Replicas) release(ctx context.Context) error {
	if r.own == nil || time.Since(r.contested) <= expire {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	released := r.own.DeepCopy() // with its uid and resource version: anything newer is a conflict
	released.Spec.HolderIdentity = nil
	_, err := r.leases.Update(ctx, released, metav1.UpdateOptions{})
	return err
}

// sweep deletes Leases that cloudcores have left behind. What fails is left to the next cloudcore that starts.
func (r *Replicas) sweep(ctx context.Context, leases []coordinationv1.Lease) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for _, l := range leases {
		t := l.Spec.RenewTime
		if t == nil || time.Since(t.Time) <= leftoverAge || l.Name == nameOf(r.address) {
			continue
		}
		only := metav1.Preconditions{UID: &l.UID, ResourceVersion: &l.ResourceVersion}
		err := r.leases.Delete(ctx, l.Name, metav1.DeleteOptions{Preconditions: &only})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			klog.InfoS("Lease that no cloudcore renews not deleted", "lease", l.Name, "err", err)
		}
	}
}

// errStale is returned by Dead while this cloudcore's own Lease is not renewed.
var errStale = errors.New("this cloudcore has not renewed its own lease for too long")

// Dead returns those of the addresses at which no cloudcore is alive. An address that has no Lease counts as dead a
// minute after the first call that asked about it.
func (r *Replicas) Dead(ctx context.Context, addresses []string) (map[string]bool, error) {
	leases, err := r.list(ctx)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(addresses))
	for i, a := range addresses {
		names[i] = nameOf(a)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.asked = names
	r.recordLeases(leases, now)
	if r.renewed.IsZero() || now.Sub(r.renewed) > expire/2 {
		return nil, errStale
	}
	dead := map[string]bool{}
	for i, a := range addresses {
		if s := r.seen[names[i]]; a != r.address && (s.released || now.Sub(s.since) > expire) {
			dead[a] = true
		}
	}
	return dead, nil
}

// Known reports whether an address is a cloudcore's, dead or alive: this one's, or one that had a Lease at the last
// look.
func (r *Replicas) Known(address string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return address == r.address || r.seen[nameOf(address)].lease != lease{}
}

// Address returns the address of this cloudcore.
func (r *Replicas) Address() string { return r.address }

// list reads the Leases of cloudcores.
func (r *Replicas) list(ctx context.Context) ([]coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := r.leases.List(ctx, metav1.ListOptions{LabelSelector: Selector})
	if err != nil {
		return nil, fmt.Errorf("list the leases of cloudcores: %w", err)
	}
	return list.Items, nil
}

// recordLeases notes what Leases there are. r.mu is held.
func (r *Replicas) recordLeases(leases []coordinationv1.Lease, now time.Time) {
	if now.Sub(r.looked) > forget {
		r.seen = nil
	}
	r.seen, r.looked = updateSights(r.seen, leases, r.asked, now), now
}

// updateSights returns what is seen of Leases, and of those with these names that do not exist. What has not changed
// since before keeps its time.
func updateSights(
	before map[string]sight, leases []coordinationv1.Lease, names []string, now time.Time,
) map[string]sight {
	seen := make(map[string]sight, max(len(leases), len(names)))
	add := func(name string, l lease) {
		s := sight{l, now}
		if was, ok := before[name]; ok && was.lease == l {
			s = was
		}
		seen[name] = s
	}
	for _, l := range leases {
		if t := l.Spec.RenewTime; t != nil {
			add(l.Name, lease{t.UnixMicro(), holderOf(&l) == ""})
		}
	}
	for _, name := range names {
		if _, ok := seen[name]; !ok {
			add(name, lease{})
		}
	}
	return seen
}
