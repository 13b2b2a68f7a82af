package load

import (
	"slices"
	"sync"
	"time"
)

// Samples are times that were measured, from any goroutine.
type Samples struct {
	mu   sync.Mutex
	list []time.Duration
}

// Add adds one.
func (s *Samples) Add(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, d)
}

// Len is how many there are.
func (s *Samples) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.list)
}

// Percentile is the time that so many percent of the samples do not exceed; 0 of none.
func (s *Samples) Percentile(percent float64) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Percentile(s.list, percent)
}

// Percentile is the time that so many percent of a list do not exceed; 0 of none.
func Percentile(list []time.Duration, percent float64) time.Duration {
	if len(list) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(list))
	rank := int(percent/100*float64(len(sorted)) + 0.999999) // the nearest rank
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Median is the middle one.
func Median(list []time.Duration) time.Duration { return Percentile(list, 50) }
