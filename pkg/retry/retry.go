// Package retry spaces attempts at something that fails. Delays double up to a maximum, and have a random part: devices
// that lost the same server do not all return at the same moment.
package retry

import (
	"context"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// jitter is the largest random part of a delay, as a share of it.
const jitter = 0.25

// Backoff returns delays that double each time, each longer by a random part of up to a quarter. It is for one
// goroutine. Make it with NewBackoff.
type Backoff struct {
	first, last time.Duration
	steps       wait.Backoff
}

// NewBackoff returns delays that begin with first and double up to last, both without their random part.
func NewBackoff(first, last time.Duration) *Backoff {
	b := &Backoff{first: first, last: max(first, last)}
	b.Reset()
	return b
}

// Reset starts over with the first delay, after an attempt that succeeded.
func (b *Backoff) Reset() {
	b.steps = wait.Backoff{Duration: b.first, Factor: 2, Jitter: jitter, Cap: b.last, Steps: math.MaxInt}
}

// Next returns how long to wait before the next attempt.
func (b *Backoff) Next() time.Duration { return b.steps.Step() }

// Wait waits for the next delay. It returns false when ctx ends first.
func (b *Backoff) Wait(ctx context.Context) bool { return Sleep(ctx, b.Next()) }

// Until calls attempt until it returns nil or ctx ends. It hands each error to failed, with the delay before the next
// attempt; failed may be nil. It returns false when ctx ended first.
func Until(
	ctx context.Context, first, last time.Duration, attempt func(context.Context) error,
	failed func(err error, again time.Duration),
) bool {
	for b := NewBackoff(first, last); ; {
		err := attempt(ctx)
		switch {
		case err == nil:
			return true
		case ctx.Err() != nil:
			return false
		}
		delay := b.Next()
		if failed != nil {
			failed(err, delay)
		}
		if !Sleep(ctx, delay) {
			return false
		}
	}
}

// Sleep waits. It returns false when ctx ends first.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
