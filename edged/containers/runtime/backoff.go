package runtime

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/edgecore-io/edgecore/edged/podstate/observed"
)

const (
	firstBackoff      = 10 * time.Second
	defaultMaxBackoff = 5 * time.Minute
	// forgiveAfter is how long a container has to run for its crashes to be forgotten, at the least.
	forgiveAfter = 10 * time.Minute
)

// backoff remembers how long each crashing container has to wait: nothing the first time, then 10 s
// doubling to a maximum, back to nothing after a run of 10 minutes. What it remembers is lost with the
// agent; the count of restarts that is written on the container stands in for it then, so that a
// restart of the agent sets off no storm.
type backoff struct {
	mu    sync.Mutex
	max   time.Duration
	waits map[backoffKey]wait
}

type backoffKey struct {
	uid  types.UID
	name string
	hash uint64
}

// wait is how long a container waits after an attempt that ended.
type wait struct {
	delay time.Duration
	// ended is the attempt that the delay was worked out for.
	ended string
	until time.Time
	// held: that attempt was removed, and the wait counts for the next one all the same.
	held bool
}

func newBackoff(limit time.Duration) *backoff {
	return &backoff{max: limit, waits: map[backoffKey]wait{}}
}

// setMax bounds waits from now on.
func (b *backoff) setMax(limit time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.max = limit
}

// waitFor returns how long a container has to wait after its last attempt, and until when; zero when it
// may start at once. Asking again for the same attempt gives the same answer.
func (b *backoff) waitFor(
	uid types.UID, name string, hash uint64, last *observed.Container,
) (time.Duration, time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := backoffKey{uid, name, hash}
	w, known := b.waits[key]
	if last == nil && w.held {
		return w.delay, w.until
	}
	if !last.Exited() || last.FinishedAt.IsZero() {
		return 0, time.Time{}
	}
	if !known || w.ended != last.ID {
		w = wait{delay: nextDelay(w.delay, known, last, b.max), ended: last.ID}
		at := now() // from here on the wait is measured by the monotonic clock, which nobody sets
		w.until = at.Add(w.delay - at.Sub(last.FinishedAt))
	}
	// A clock that went back since would hold the container until it has caught up.
	if latest := now().Add(w.delay); w.until.After(latest) {
		w.until = latest
	}
	b.waits[key] = w
	if w.delay == 0 {
		return 0, time.Time{}
	}
	return w.delay, w.until
}

// afterStopped returns the same for a container whose newest attempt was just stopped by the agent. The attempts before
// it with the same spec decide how long it waits, as with the kubelet: where the wait before the newest one was enough,
// it starts again at once. A wait is counted from now.
func (b *backoff) afterStopped(
	uid types.UID, name string, hash uint64, attempts []*observed.Container,
) (time.Duration, time.Time) {
	i := slices.IndexFunc(attempts, func(c *observed.Container) bool { return c.Exited() && c.Hash == hash })
	if i < 0 {
		return 0, time.Time{}
	}
	delay, until := b.waitFor(uid, name, hash, attempts[i])
	if !until.After(now()) {
		return delay, until
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	w := wait{delay: delay, ended: attempts[0].ID, until: now().Add(delay)}
	b.waits[backoffKey{uid, name, hash}] = w
	return w.delay, w.until
}

// keepWait keeps the wait of a container for its next attempt, though the one before is removed.
func (b *backoff) keepWait(uid types.UID, name string, hash uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := backoffKey{uid, name, hash}
	if w, known := b.waits[key]; known && w.delay > 0 {
		w.held = true
		b.waits[key] = w
	}
}

// nextDelay is the wait after an attempt, given the wait before it. It is pure.
func nextDelay(before time.Duration, known bool, last *observed.Container, limit time.Duration) time.Duration {
	if ran := last.FinishedAt.Sub(last.StartedAt); !last.StartedAt.IsZero() && ran >= max(forgiveAfter, 2*limit) {
		return 0
	}
	if !known {
		// The n-th restart (n counted from 1) was preceded by a wait of 10 s * 2^(n-2).
		for n := int32(0); n < last.RestartCount && before < limit; n++ {
			before = double(before, limit)
		}
		return before
	}
	return double(before, limit)
}

func double(d, limit time.Duration) time.Duration {
	return min(max(2*d, firstBackoff), limit)
}

// forget drops what is known of a pod.
func (b *backoff) forget(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key := range b.waits {
		if key.uid == uid {
			delete(b.waits, key)
		}
	}
}
