package runtimelimit

import "time"

const (
	// remembered is about how many of the latest calls make up a trend.
	remembered = 64
	// forgotten is how long without calls makes earlier ones meaningless: the load of the device may have changed.
	forgotten = 10 * time.Second
	// doubt is how much the number of calls at once must vary for a trend with a certainty of one half.
	doubt = 0.5
)

// trend estimates how the duration of calls depends on how many run at once: the slope of a least-squares line through
// the logarithms of both. All kinds of calls share the slope, and each has its own intercept. Older calls weigh less.
type trend struct {
	last  time.Time
	kinds [kinds]sums
}

// sums are weighted sums of points.
type sums struct{ n, x, y, xx, xy float64 }

// add adds a point of a kind.
func (t *trend) add(now time.Time, k Kind, x, y float64) {
	if now.Sub(t.last) > forgotten {
		*t = trend{}
	}
	t.last = now
	for i := range t.kinds {
		s := &t.kinds[i]
		for _, sum := range []*float64{&s.n, &s.x, &s.y, &s.xx, &s.xy} {
			*sum *= 1 - 1.0/remembered
		}
	}
	s := &t.kinds[k]
	s.n++
	s.x += x
	s.y += y
	s.xx += x * x
	s.xy += x * y
}

// slope returns the slope and its certainty, from 0 to 1.
func (t *trend) slope() (slope, certain float64) {
	var xx, xy float64
	for _, s := range t.kinds {
		if s.n > 0 {
			xx += s.xx - s.x*s.x/s.n
			xy += s.xy - s.x*s.y/s.n
		}
	}
	if xx <= 0 {
		return 0, 0
	}
	return min(max(xy/xx, 0), 2), xx / (xx + doubt)
}
