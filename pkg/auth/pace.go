package auth

import (
	"context"
	"net/netip"
	"sync"

	"golang.org/x/time/rate"
	"k8s.io/utils/lru"
)

// maxSources is how many sources have a limiter of their own. Beyond them, the one that asked least recently starts
// again with a full burst; the rate of all is bounded all the same.
const maxSources = 256

// sources are the rate limits of sources of unknown tokens: half of that of all each.
type sources struct {
	mu       sync.Mutex
	limiters *lru.Cache
}

func newSources() *sources { return &sources{limiters: lru.New(maxSources)} }

// limiterOf returns the limit of a source; nil for one that stands for many, such as all that comes through tunnels.
func (s *sources) limiterOf(from netip.Prefix) *rate.Limiter {
	if !from.IsValid() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if got, ok := s.limiters.Get(from); ok {
		return got.(*rate.Limiter)
	}
	l := rate.NewLimiter(reviewsPerSecond/2., reviewsBurst/2)
	s.limiters.Add(from, l)
	return l
}

// await waits for rate limits of questions to the cloud; nil is none. It fails at once if that would take longer than
// reviewWait.
func (a *Authority) await(ctx context.Context, limiters ...*rate.Limiter) error {
	if a.opts.Cloud == nil {
		return errNoCloud
	}
	ctx, cancel := context.WithTimeout(ctx, reviewWait)
	defer cancel()
	for _, l := range limiters {
		if l != nil && l.Wait(ctx) != nil {
			return errTooMany
		}
	}
	return nil
}

// awaitToken waits to ask about a token. One that the cluster knew before waits for no strangers.
func (a *Authority) awaitToken(ctx context.Context, k key, from netip.Prefix) error {
	if _, _, known := a.tokens.get(k); known {
		return a.await(ctx, a.knownTokenPace)
	}
	return a.await(ctx, a.sources.limiterOf(from), a.tokenPace)
}

// awaitAccess waits to ask whether a user may do something. What the cluster has allowed before does not wait for what
// it has not.
func (a *Authority) awaitAccess(ctx context.Context, k key) error {
	if got, _, known := a.access.get(k); known && got.allowed {
		return a.await(ctx, a.knownAccessPace)
	}
	return a.await(ctx, a.accessPace)
}
