package nodeidentity

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/time/rate"

	"github.com/edgecore-io/edgecore/cloud/ratelimit"
)

// lookups limits lookups at the API server: those of each source, those of each name, and all. Anyone with a leaked
// token can connect under any number of names that have no Node.
type lookups struct {
	sources *ratelimit.Limiter[netip.Prefix]
	names   *ratelimit.Limiter[string]
	all     *rate.Limiter
}

// newLookups makes limits of which one source has perSource lookups a second.
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

// wait waits until a name may be looked up for a source. It fails at once if that is not within the time of ctx. Only
// what passes the limit of a source counts for its name, and only what passes both counts for all.
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
