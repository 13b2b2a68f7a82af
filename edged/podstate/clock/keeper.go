package clock

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/edgecore-io/edgecore/pkg/health"
	"github.com/edgecore-io/edgecore/pkg/retry"
)

// watchAgain is when watching the clock is tried again after it failed.
const watchAgain = 10 * time.Minute

// Keeper says whether the clock can be right, and acts when it is set: the node's status is reported again, and the
// cloud is dialled at once if a wrong clock prevented a connection. Pods do not depend on it.
type Keeper struct {
	Health *health.Registry
	// Bound is a time that is over.
	Bound Bound
	// Began is when the agent began, for the log.
	Began time.Time
	// Set is called when the wall clock was set.
	Set func()
}

// Run keeps watch until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	for {
		k.check()
		err := Watch(ctx, func() {
			klog.InfoS("The clock was set",
				"now", time.Now().UTC().Format(time.RFC3339), "running", time.Since(k.Began).Round(time.Second))
			k.check()
			k.Set()
		})
		if ctx.Err() != nil {
			return nil
		}
		klog.ErrorS(err, "The setting of the clock is not watched", "again", watchAgain)
		if !retry.Sleep(ctx, watchAgain) {
			return nil
		}
	}
}

func (k *Keeper) check() {
	if why := Doubt(time.Now(), Synchronized(), k.Bound); why != "" {
		k.Health.Set(health.ClockNotSet, "", why)
	} else {
		k.Health.Clear(health.ClockNotSet, "")
	}
}
