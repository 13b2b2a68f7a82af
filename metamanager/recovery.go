package metamanager

import (
	"context"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/metamanager/store"
	"github.com/edgecore-io/edgecore/pkg/health"
)

// recovered is the store's note that it was repaired, kept until the cloud has sent everything again.
const recovered = "store-recovered"

// RememberRecovery notes in the store what r says, which is nil if the store was whole when it was opened. It returns
// whether rows may have been lost, now or since an earlier start; the condition StoreRecovered says so, too.
func RememberRecovery(
	ctx context.Context, db *store.Store, r *store.Recovery, conditions *health.Registry,
) (bool, error) {
	if r != nil {
		conditions.Set(health.StoreRecovered, "", r.String())
		if r.Complete {
			return false, nil
		}
		return true, db.Apply(ctx, store.AgentSet(recovered, r.String()))
	}
	what, err := db.AgentValue(ctx, recovered)
	if err != nil {
		return false, nil // there is no such note
	}
	conditions.Set(health.StoreRecovered, "", what)
	return true, nil
}

// Recovered reports whether rows may have been lost that the cloud has not told again.
func Recovered(ctx context.Context, db *store.Store) bool {
	_, err := db.AgentValue(ctx, recovered)
	return err == nil
}

// ForgetRecovery drops the note of a recovery: the cloud has sent everything again.
func ForgetRecovery(ctx context.Context, db *store.Store, conditions *health.Registry) {
	if !Recovered(ctx, db) {
		return // nothing is to be written
	}
	if err := db.Apply(ctx, store.AgentDelete(recovered)); err != nil {
		klog.ErrorS(err, "Note of the store's recovery not removed")
		return
	}
	conditions.Clear(health.StoreRecovered, "")
}
