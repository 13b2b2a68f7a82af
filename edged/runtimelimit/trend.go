package runtimelimit

import "time"

const (
	// remembered is about how many calls a trend is made from.
	remembered = 64
	// forgotten is after how long without calls the ones before say nothing: the device may do something else by now.
	forgotten = 10 * time.Second
	// doubt is how much the number of calls at once has to vary for a trend to be half certain.
	doubt = 0.5
)

// trend is how the length of calls depends on how many run at once: the slope of a line through the logarithms of both,
// by least squares. Each kind of call has its own height of the line. Older calls weigh less.
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

// slope returns the slope and how certain it is, from 0 to 1.
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
