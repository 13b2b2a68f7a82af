package edgehub

import (
	"context"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/notify"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

const (
	// changesEvery and changesBurst limit how often network changes cause a dial: a flapping link must not cause
	// endless dials. No change is forgotten.
	changesEvery = 5 * time.Second
	changesBurst = 3
	// watchRetry is the delay before watching again after a failure.
	watchRetry = time.Minute
)

// watchNetwork signals changes of the network until ctx ends.
func (m *Module) watchNetwork(ctx context.Context) {
	seen := notify.NewSignal()
	done := make(chan struct{})
	go func() {
		defer close(done)
		limit := rate.NewLimiter(rate.Every(changesEvery), changesBurst)
		for {
			select {
			case <-ctx.Done():
				return
			case <-seen:
			}
			if limit.Wait(ctx) != nil {
				return
			}
			m.networkChanged.Notify()
		}
	}()
	for ctx.Err() == nil {
		if err := m.watch(ctx, seen.Notify); err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "Network changes are not watched; reconnecting follows the usual backoff only",
				"again", watchRetry)
		}
		retry.Sleep(ctx, watchRetry)
	}
	<-done
}
