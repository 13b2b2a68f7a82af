package edgecontroller

import (
	"context"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// historyPeriod is the time between two looks at the resource version of the API server: one small request.
const historyPeriod = 30 * time.Second

// errRestored says that what the caches hold is of a history that the API server has no longer.
type errRestored struct{ seen, now uint64 }

func (e errRestored) Error() string {
	return fmt.Sprintf("the resource version of the API server went back from %d to %d, so its etcd was restored from a backup: "+
		"cloudcore must start again, as its caches would miss changes until that version is reached", e.seen, e.now)
}

// WatchHistory returns an error when the resource version of the API server has gone back, which a restore of etcd from a
// backup does: watches that were begun before miss all changes until the versions have caught up. The caller ends
// the process, so that all is read again. Without that it returns nil when the context ends.
func (c *Controller) WatchHistory(ctx context.Context) error {
	tick := time.NewTicker(historyPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := c.checkHistory(ctx); err != nil {
			return err
		}
	}
}

// checkHistory compares what the caches have seen with what a read that begins after that returns. A request that fails
// says nothing.
func (c *Controller) checkHistory(ctx context.Context) error {
	seen := c.caches.newest()
	ctx, cancel := context.WithTimeout(ctx, c.options.RequestTimeout)
	defer cancel()
	// Without a resourceVersion the API server answers with the newest state.
	list, err := c.clients.Own.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: EdgeLabel + "=", Limit: 1})
	if err != nil {
		klog.V(2).InfoS("Resource version of the API server not read", "err", err)
		return nil
	}
	return compareHistory(seen, list.ResourceVersion)
}

// compareHistory compares the newest resource version that was seen with that of a later read. Versions that are not
// numbers do not compare.
func compareHistory(seen uint64, later string) error {
	now, err := strconv.ParseUint(later, 10, 64)
	if err != nil || now >= seen {
		return nil
	}
	return errRestored{seen: seen, now: now}
}

// newest returns the highest resource version that one of the caches has seen; 0 for none.
func (c *caches) newest() (newest uint64) {
	for _, i := range []cache.SharedIndexInformer{c.pods, c.nodes, c.configMaps, c.secrets, c.services} {
		if v, err := strconv.ParseUint(i.LastSyncResourceVersion(), 10, 64); err == nil {
			newest = max(newest, v)
		}
	}
	return newest
}
