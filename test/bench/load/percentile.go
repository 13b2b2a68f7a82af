package load

import (
	"slices"
	"time"
)

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
