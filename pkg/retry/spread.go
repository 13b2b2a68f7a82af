package retry

import (
	"math/rand/v2"
	"time"
)

// Spread returns delays that are random over their whole range: at least the lowest, and at most a limit that doubles
// with each failure. Devices that lost one server return over time, whereas those of a Backoff return within a quarter
// of the delay. It is for one goroutine. Make it with NewSpread.
type Spread struct {
	lowest, highest time.Duration
	failures        int
	// random returns a duration from 0 to n-1.
	random func(n time.Duration) time.Duration
}

// NewSpread returns delays from lowest to a limit that begins with twice lowest and grows up to highest.
func NewSpread(lowest, highest time.Duration) *Spread {
	return &Spread{lowest: lowest, highest: highest, random: func(n time.Duration) time.Duration { return rand.N(n) }}
}

// Next returns how long to wait after one more failure.
func (s *Spread) Next() time.Duration {
	limit := s.highest
	if s.failures < 30 {
		limit = min(limit, s.lowest<<(s.failures+1))
	}
	s.failures++
	if limit <= s.lowest {
		return s.lowest
	}
	return s.lowest + s.random(limit-s.lowest+1)
}

// Reset forgets the failures.
func (s *Spread) Reset() { s.failures = 0 }
