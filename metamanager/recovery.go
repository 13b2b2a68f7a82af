package metamanager

import (
	"context"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// recovered is the store's note that it was repaired, kept until the cloud has sent everything again. A store that was
// rolled back has store.RolledBackNote.
const recovered = "store-recovered"

// RememberRecovery notes in the store what r says, which is nil if the store was whole when it was opened. It returns
// whether rows may have been lost, now or since an earlier start; the conditions StoreRecovered and StoreRolledBack say
// so, too.
func RememberRecovery(
	ctx context.Context, db *store.Store, r *store.Recovery, conditions *health.Registry,
) (bool, error) {
	what, err := db.AgentValue(ctx, store.RolledBackNote)
	lost := err == nil
	if lost {
		conditions.Set(health.StoreRolledBack, "", what)
	}
	if r != nil && r.Newer == 0 {
		conditions.Set(health.StoreRecovered, "", r.String())
		if r.Complete {
			return lost, nil
		}
		return true, db.Apply(ctx, store.AgentSet(recovered, r.String()))
	}
	if what, err = db.AgentValue(ctx, recovered); err == nil {
		conditions.Set(health.StoreRecovered, "", what)
		lost = true
	}
	return lost, nil
}

// Recovered reports whether rows may have been lost that the cloud has not told again.
func Recovered(ctx context.Context, db *store.Store) bool {
	_, repaired := db.AgentValue(ctx, recovered)
	_, rolledBack := db.AgentValue(ctx, store.RolledBackNote)
	return repaired == nil || rolledBack == nil
}

// ForgetRecovery drops the notes of a recovery: the cloud has sent everything again.
func ForgetRecovery(ctx context.Context, db *store.Store, conditions *health.Registry) {
	if !Recovered(ctx, db) {
		return // nothing is to be written
	}
	if err := db.Apply(ctx, store.AgentDelete(recovered), store.AgentDelete(store.RolledBackNote)); err != nil {
		klog.ErrorS(err, "Note of the store's recovery not removed")
		return
	}
	conditions.Clear(health.StoreRecovered, "")
	conditions.Clear(health.StoreRolledBack, "")
}
