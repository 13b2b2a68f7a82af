package edgehub

import (
	"math/rand/v2"
	"time"
)

// backoff says how long to wait before the next dial: at least min, and up to a limit that doubles with each failure
// until it is max. The spread is as wide as it can be: a thousand edges that lost one cloud come back over
// time, and not together.
type backoff struct {
	min, max time.Duration
	failures int
	// random returns a number from 0 to n-1.
	random func(n time.Duration) time.Duration
}

func newBackoff(lowest, highest time.Duration) *backoff {
	return &backoff{min: lowest, max: highest, random: func(n time.Duration) time.Duration { return rand.N(n) }}
}

// next returns the time to wait after one more failure.
func (b *backoff) next() time.Duration {
	limit := b.max
	if b.failures < 30 {
		limit = min(limit, b.min<<(b.failures+1))
	}
	b.failures++
	if limit <= b.min {
		return b.min
	}
	return b.min + b.random(limit-b.min+1)
}

// reset forgets the failures.
func (b *backoff) reset() { b.failures = 0 }
