// Package ratelimit limits the rate of each of many keys, such as source addresses. Its memory is bounded even if
// strangers choose the keys.
package ratelimit

import (
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// maxKeys limits the memory: beyond it the longest idle keys are forgotten, and get the whole burst again.
const maxKeys = 10000

// Limiter has a rate limit for each key. Its methods may be called from any goroutine.
type Limiter[K comparable] struct {
	rate  rate.Limit
	burst int
	max   int // keys

	mu      sync.Mutex
	buckets map[K]*bucket
}

type bucket struct {
	*rate.Limiter
	used time.Time
}

// New makes a limiter that lets each key do perSecond, and burst at once.
func New[K comparable](perSecond rate.Limit, burst int) *Limiter[K] {
	return &Limiter[K]{rate: perSecond, burst: burst, max: maxKeys, buckets: map[K]*bucket{}}
}

// Of returns the limiter of a key. Use it at once.
func (l *Limiter[K]) Of(key K, now time.Time) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, ok := l.buckets[key]
	if !ok {
		if len(l.buckets) >= l.max {
			l.forget(now)
		}
		b = &bucket{Limiter: rate.NewLimiter(l.rate, l.burst)}
		l.buckets[key] = b
	}
	b.used = now
	return b.Limiter
}

// Len returns how many keys have a limiter.
func (l *Limiter[K]) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.buckets)
}

// forget drops limiters that are full again. If those are few, it also drops the longest idle quarter, so that it is
// not called for every new key.
func (l *Limiter[K]) forget(now time.Time) {
	var rest []K
	for key, b := range l.buckets {
		if b.TokensAt(now) >= float64(l.burst) {
			delete(l.buckets, key)
		} else {
			rest = append(rest, key)
		}
	}
	if len(rest) <= l.max*3/4 {
		return
	}
	slices.SortFunc(rest, func(a, b K) int { return l.buckets[a].used.Compare(l.buckets[b].used) })
	for _, key := range rest[:l.max/4] {
		delete(l.buckets, key)
	}
}
