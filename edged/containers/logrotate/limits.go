package logrotate

import (
	"context"
	"math"
)

// limits are how large a log becomes, and how many files it has.
type limits struct {
	size  int64
	files int
}

// SetLimits changes Options.MaxSize and Options.MaxFiles. A log that is too large by then is rotated when it is written
// to.
func (r *Rotator) SetLimits(size int64, files int) {
	if size <= 0 {
		size = math.MaxInt64
	}
	r.limits.Store(&limits{size, max(files, 2)})
	r.changed.Notify()
}

// budget is what the rotated parts of a log may take together.
func (r *Rotator) budget() int64 {
	l := r.limits.Load()
	if l.size > math.MaxInt64/int64(l.files) {
		return math.MaxInt64
	}
	return l.size * int64(l.files)
}

// awaitLimits waits until logs have a limit, and returns false when ctx ends before.
func (r *Rotator) awaitLimits(ctx context.Context) bool {
	for r.limits.Load().size == math.MaxInt64 {
		select {
		case <-ctx.Done():
			return false
		case <-r.changed:
		}
	}
	return true
}
