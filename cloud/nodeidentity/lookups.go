package nodeidentity

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/time/rate"

	"github.com/edgecore-io/edgecore/pkg/ratelimit"
)

// lookups limits requests to the API server per source, per name, and in total. Anyone with a leaked token can connect
// under any number of names that have no Node.
type lookups struct {
	sources *ratelimit.Limiter[netip.Prefix]
	names   *ratelimit.Limiter[string]
	all     *rate.Limiter
}

// newLookups returns limits that allow each source perSource lookups a second.
func newLookups(perSource int) lookups {
	source := rate.Limit(perSource)
	burst := func(r rate.Limit) int { return int(r * lookupBurst) }
	name, all := source*namePerSource, source*allPerSource
	return lookups{
		sources: ratelimit.New[netip.Prefix](source, burst(source)),
		names:   ratelimit.New[string](name, burst(name)),
		all:     rate.NewLimiter(all, burst(all)),
	}
}

// wait waits until a source may look up a name. It fails at once if that would exceed ctx's deadline. Lookups count for
// a name only after passing the source's limit, and for the total only after passing both.
func (l lookups) wait(ctx context.Context, name string, from netip.Prefix) error {
	if err := l.sources.Of(from, time.Now()).Wait(ctx); err != nil {
		return fmt.Errorf("too many connections or requests from %s for nodes that are not registered: %w", from, err)
	}
	if err := l.names.Of(name, time.Now()).Wait(ctx); err != nil {
		return fmt.Errorf("too many connections or requests for this name, which is not registered: %w", err)
	}
	if err := l.all.Wait(ctx); err != nil {
		return fmt.Errorf("too many connections or requests for nodes that are not registered: %w", err)
	}
	return nil
}
