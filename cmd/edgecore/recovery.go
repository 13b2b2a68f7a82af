package main

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/metamanager"
	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// recoveryNote forgets that the store was repaired or rolled back, once the cloud has sent everything again and has the
// Node's status that says so. If the agent is killed in between, the next run says it again.
type recoveryNote struct {
	db         *store.Store
	conditions *health.Registry
	// hasNode: there is a Node whose status says it.
	hasNode bool

	mu               sync.Mutex
	synced, reported bool
}

// sync is called when the cloud has sent everything.
func (r *recoveryNote) sync(ctx context.Context) { r.forget(ctx, func() { r.synced = true }) }

// report is called with each status of the Node that the cloud has.
func (r *recoveryNote) report(ctx context.Context, status *v1.NodeStatus) {
	for _, c := range status.Conditions {
		switch health.Code(c.Type) {
		case health.StoreRecovered, health.StoreRolledBack:
			r.forget(ctx, func() { r.reported = true })
			return
		}
	}
}

func (r *recoveryNote) forget(ctx context.Context, note func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	note()
	if r.synced && (r.reported || !r.hasNode) {
		metamanager.ForgetRecovery(ctx, r.db, r.conditions)
	}
}
