package eviction

import (
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/pkg/smallsort"
)

// Observation is how much there is of what a signal is about.
type Observation struct{ Available, Capacity int64 }

// Observations are those of one look at the node; a signal that could not be read is not there.
type Observations map[Signal]Observation

// Config is what to watch for.
type Config struct {
	// Thresholds are as Parse makes them.
	Thresholds []Threshold
	// Transition is how long a condition stays after its thresholds are met no more.
	Transition time.Duration
	// MaxPodGrace, in seconds, is how long a pod may take to end for a soft threshold at the longest.
	MaxPodGrace int64
}

// WithHard returns the config with the hard thresholds of another one. What has to be reclaimed for them is its own.
func (c Config) WithHard(other Config) Config {
	least := map[Signal]Value{}
	var list []Threshold
	for _, t := range c.Thresholds {
		if t.Soft {
			list = append(list, t)
		}
		least[t.Signal] = t.MinReclaim
	}
	for _, t := range other.Thresholds {
		if t.Soft {
			continue
		}
		if own, ok := least[t.Signal]; ok {
			t.MinReclaim = own
		}
		list = append(list, t)
	}
	smallsort.SortFunc(list, func(a, b Threshold) int { return compareKeys(a.key(), b.key()) })
	c.Thresholds = list
	return c
}

// State is what was seen before. The zero value has seen nothing.
type State struct {
	// since is when the thresholds that are met were met first.
	since map[key]time.Time
	// acting are the thresholds that are past their grace periods, until their minimum is reclaimed.
	acting map[key]bool
	// pressed is when a threshold of a condition was met last.
	pressed map[v1.NodeConditionType]time.Time
	// seen is what was seen last, at when.
	seen Observations
	at   time.Time
}

// Verdict is what follows from a look.
type Verdict struct {
	// Conditions are those that the node is in, in order.
	Conditions []v1.NodeConditionType
	// Met are the thresholds that are met, Acts those to act upon, the first of them first.
	Met, Acts []Threshold
	// Again is when the next look is due though nothing is reported.
	Again time.Duration
}

const (
	// Period is the time between two looks while nothing gets short: as the kubelet's.
	Period = 10 * time.Second
	// Soon is that time while a threshold is acted upon, and the shortest one.
	Soon = 2 * time.Second
)

// Step decides what follows from a look at the node. now has to have a monotonic reading.
func Step(c Config, before State, seen Observations, now time.Time) (State, Verdict) {
	next := State{
		since:   map[key]time.Time{},
		acting:  map[key]bool{},
		pressed: maps.Clone(before.pressed),
		seen:    seen,
		at:      now,
	}
	if next.pressed == nil {
		next.pressed = map[v1.NodeConditionType]time.Time{}
	}
	out := Verdict{Again: Period}
	for _, t := range c.Thresholds {
		k := t.key()
		if !met(&t, seen, before.acting[k]) {
			if left, known := timeUntilMet(&t, before, seen, now); known {
				out.Again = min(out.Again, max(left/2, Soon))
			}
			continue
		}
		out.Met = append(out.Met, t)
		next.since[k] = now
		if first, ok := before.since[k]; ok {
			next.since[k] = first
		}
		next.pressed[t.Signal.Condition()] = now
		if left := t.Grace - now.Sub(next.since[k]); t.Soft && left > 0 {
			out.Again = min(out.Again, max(left, 10*time.Millisecond))
			continue
		}
		next.acting[k] = true
		out.Acts = append(out.Acts, t)
		out.Again = min(out.Again, Soon)
	}
	for kind, last := range next.pressed {
		left := c.Transition - now.Sub(last)
		switch {
		case last.Equal(now):
		case left > 0:
			out.Again = min(out.Again, left)
		default:
			delete(next.pressed, kind)
		}
	}
	out.Conditions = slices.Sorted(maps.Keys(next.pressed))
	return next, out
}

// met reports whether a threshold is met. One that is acted upon stays met until its minimum is reclaimed.
func met(t *Threshold, seen Observations, acting bool) bool {
	o, known := seen[t.Signal]
	if !known {
		return false
	}
	limit := t.Value.Of(o.Capacity)
	if acting {
		limit += t.MinReclaim.Of(o.Capacity)
	}
	return o.Available < limit
}

// timeUntilMet estimates how long it takes until a threshold is met, from the change since the previous observation.
// known is false if the available amount has not decreased, and for memory, which the kernel reports by itself.
func timeUntilMet(t *Threshold, before State, seen Observations, now time.Time) (left time.Duration, known bool) {
	o, ok := seen[t.Signal]
	was, had := before.seen[t.Signal]
	if !ok || !had || t.Signal.Resource() == v1.ResourceMemory {
		return 0, false
	}
	took, passed := float64(was.Available-o.Available), now.Sub(before.at)
	if took <= 0 || passed <= 0 {
		return 0, false
	}
	times := float64(o.Available-t.Value.Of(o.Capacity)) / took
	return time.Duration(min(times*float64(passed), float64(time.Hour))), true
}

// headroom is how much more memory may be used before a hard threshold of a signal is met; ok is false where there is
// none.
func headroom(c Config, seen Observations, signal Signal) (bytes int64, ok bool) {
	for _, t := range c.Thresholds {
		o, known := seen[signal]
		if t.Signal == signal && known {
			if left := o.Available - t.Value.Of(o.Capacity); !ok || left > 0 && left < bytes {
				bytes, ok = left, true
			}
		}
	}
	return bytes, ok
}
