// Package replicas finds out which cloudcores are alive. Each cloudcore that makes nodes reachable for callers keeps a
// Lease in cloudcore's namespace, which names the address that callers connect to.
//
// It promises:
//
//   - An address counts as dead only if kube-apiserver has no Lease of it, or one that has not been renewed for a
//     minute while this cloudcore looked. Clocks are not compared.
//   - A cloudcore that has not renewed its own Lease for 30 s declares no other dead, since the others may soon count
//     it as dead itself.
//   - A cloudcore that stops deletes its Lease. Leases of killed cloudcores are deleted after a day, by the next
//     cloudcore that starts.
package replicas

import (
	"context"
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
	// Every is how often a Lease is renewed, and expire how long after the last renewal its cloudcore counts as dead.
	Every  = 15 * time.Second
	expire = time.Minute
	// requestTimeout limits a request to kube-apiserver.
	requestTimeout = 10 * time.Second
	// leftoverAge is the age of Leases that nobody renews and the next cloudcore deletes.
	leftoverAge = 24 * time.Hour
	// label marks the Leases, with the value endpoint.
	label = "edgecore.io/cloudcore"
	value = "endpoint"
)

// Replicas keeps the Lease of this cloudcore and reads those of the others. Its methods may be called from any
// goroutine.
type Replicas struct {
	leases  coordination.LeaseInterface
	address string

	mu sync.Mutex
	// renewed is when this cloudcore's Lease was renewed last.
	renewed time.Time
	// seen are the Leases of others by their address.
	seen map[string]sight
}

// sight is the renewal time of a Lease, and when this cloudcore saw that time first.
type sight struct{ renewed, since time.Time }

// New returns the Replicas of a cloudcore that callers reach at address. leases is the client for cloudcore's
// namespace.
func New(leases coordination.LeaseInterface, address string) *Replicas {
	return &Replicas{leases: leases, address: address, seen: map[string]sight{}}
}

// nameOf returns the name of the Lease of an address.
func nameOf(address string) string {
	return "cloudcore-" + strings.Trim(strings.NewReplacer(".", "-", ":", "-").Replace(address), "-")
}

// Run keeps the Lease until ctx ends, and then deletes it.
func (r *Replicas) Run(ctx context.Context) {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	failing := false
	for swept := false; ctx.Err() == nil; {
		err := r.renew(ctx)
		if err == nil && !swept {
			swept = true
			err = r.sweep(ctx)
		}
		if err != nil && !failing && ctx.Err() == nil {
			klog.ErrorS(err, "Lease of this cloudcore not renewed: it takes over no nodes, and another cloudcore "+
				"may take over its offline nodes")
		}
		failing = err != nil
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	err := r.leases.Delete(ctx, nameOf(r.address), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		klog.V(1).InfoS("Lease of this cloudcore not deleted; it expires", "err", err)
	}
}

// renew renews the Lease, or creates it.
func (r *Replicas) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	began := time.Now()
	seconds := int32(expire / time.Second)
	spec := coordinationv1.LeaseSpec{
		HolderIdentity: &r.address, LeaseDurationSeconds: &seconds, RenewTime: &metav1.MicroTime{Time: began},
	}
	lease, err := r.leases.Get(ctx, nameOf(r.address), metav1.GetOptions{})
	if err == nil {
		lease.Spec = spec
		_, err = r.leases.Update(ctx, lease, metav1.UpdateOptions{})
	} else if apierrors.IsNotFound(err) {
		_, err = r.leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: nameOf(r.address), Labels: map[string]string{label: value}}, Spec: spec,
		}, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("renew lease %s: %w", nameOf(r.address), err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.renewed = began
	return nil
}

func (r *Replicas) list(ctx context.Context) ([]coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := r.leases.List(ctx, metav1.ListOptions{LabelSelector: label + "=" + value})
	if err != nil {
		return nil, fmt.Errorf("list the leases of cloudcores: %w", err)
	}
	return list.Items, nil
}

// sweep deletes Leases that killed cloudcores have left behind.
func (r *Replicas) sweep(ctx context.Context) error {
	leases, err := r.list(ctx)
	if err != nil {
		return err
	}
	for _, l := range leases {
		if t := l.Spec.RenewTime; t != nil && time.Since(t.Time) > leftoverAge && l.Name != nameOf(r.address) {
			only := metav1.Preconditions{ResourceVersion: &l.ResourceVersion}
			err := r.leases.Delete(ctx, l.Name, metav1.DeleteOptions{Preconditions: &only})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return fmt.Errorf("delete lease %s, which nobody renews: %w", l.Name, err)
			}
		}
	}
	return nil
}

// errStale is returned by Dead while this cloudcore's own Lease is not renewed.
var errStale = errors.New("this cloudcore has not renewed its own lease for too long")

// Dead returns those of the addresses at which no cloudcore is alive. An address whose Lease is no longer renewed
// counts as dead a minute after the first call that asked about it.
func (r *Replicas) Dead(ctx context.Context, addresses []string) (map[string]bool, error) {
	leases, err := r.list(ctx)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.renewed.IsZero() || now.Sub(r.renewed) > expire/2 {
		return nil, errStale
	}
	r.seen = look(r.seen, leases, now)
	dead := map[string]bool{}
	for _, a := range addresses {
		if s, ok := r.seen[a]; a != r.address && (!ok || now.Sub(s.since) > expire) {
			dead[a] = true
		}
	}
	return dead, nil
}

// look reads the Leases. One that has not changed since the last call keeps the time at which it was first seen.
func look(before map[string]sight, leases []coordinationv1.Lease, now time.Time) map[string]sight {
	seen := make(map[string]sight, len(leases))
	for _, l := range leases {
		if l.Spec.HolderIdentity == nil || l.Spec.RenewTime == nil {
			continue
		}
		s := sight{l.Spec.RenewTime.Time, now}
		if was, ok := before[*l.Spec.HolderIdentity]; ok && was.renewed.Equal(s.renewed) {
			s = was
		}
		seen[*l.Spec.HolderIdentity] = s
	}
	return seen
}
