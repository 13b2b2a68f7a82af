package stats

import (
	"sync"
	"time"

	"k8s.io/utils/ptr"
)

const (
	// window is after how long another sample becomes the one to average from; stale is when one is too old for that.
	window = 10 * time.Second
	stale  = time.Minute
	// moment is what lies between the two samples that a first question takes.
	moment = 500 * time.Millisecond
	// least is what has to lie between two samples for their difference to mean something.
	least = 100 * time.Millisecond
)

// rates are the CPU usages of what was sampled, by a name of it.
type rates struct {
	mu sync.Mutex
	of map[string]*rate
}

// rate is the sample from which usage is averaged, and what came of it last.
type rate struct {
	at, seen time.Time
	cpu      uint64
	nano     *uint64
}

// addSample takes a sample, and returns the usage in billionths of a core since an earlier one; nil where there is none
// yet.
func (r *rates) addSample(name string, u *usage) *uint64 {
	if u.cpu == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	have := r.of[name]
	if have == nil || *u.cpu < have.cpu || u.at.Sub(have.at) > stale {
		r.of[name] = &rate{at: u.at, seen: u.at, cpu: *u.cpu}
		return nil
	}
	passed := u.at.Sub(have.at)
	have.seen = u.at
	if passed < least {
		return have.nano
	}
	have.nano = ptr.To(uint64(float64(*u.cpu-have.cpu) / passed.Seconds()))
	nano := have.nano
	if passed >= window {
		have.at, have.cpu = u.at, *u.cpu
	}
	return nano
}

// drop forgets what has not been sampled for long: it is gone.
func (r *rates) drop(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, have := range r.of {
		if now.Sub(have.seen) > stale {
			delete(r.of, name)
		}
	}
}
