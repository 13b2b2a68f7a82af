package edged

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/edged/clock"
	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// clockAgain is when watching the clock is tried again after it failed.
const clockAgain = 10 * time.Minute

// keepClock says whether the clock can be right, and acts when it is set: the cloud is told anew, and is dialled at
// once where a clock that was wrong stood in the way. Pods do not depend on it.
func (e *Edged) keepClock(ctx context.Context) error {
	for {
		e.checkClock()
		err := clock.Watch(ctx, func() {
			klog.InfoS("The clock was set", "now", time.Now().UTC().Format(time.RFC3339), "running", time.Since(e.began).Round(time.Second))
			e.checkClock()
			if e.opts.ClockSet != nil {
				e.opts.ClockSet()
			}
			e.wakeNode()
		})
		if ctx.Err() != nil {
			return nil
		}
		klog.ErrorS(err, "That the clock is set goes unnoticed", "again", clockAgain)
		if !retry.Sleep(ctx, clockAgain) {
			return nil
		}
	}
}

func (e *Edged) checkClock() {
	if why := clock.Wrong(time.Now(), clock.Synchronized(), e.opts.ClockBound); why != "" {
		e.health.Set(health.ClockNotSet, "", why)
	} else {
		e.health.Clear(health.ClockNotSet, "")
	}
}
