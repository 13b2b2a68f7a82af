package results

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Summary has the median and the spread of samples.
type Summary struct {
	N      int     `json:"n"`
	Median float64 `json:"median"`
	// Low and High are the quartiles.
	Low  float64 `json:"q1"`
	High float64 `json:"q3"`
	Min  float64 `json:"min"`
	Max  float64 `json:"max"`
}

// Summarize computes the summary of samples; it is zero for no samples.
func Summarize(samples []float64) Summary {
	if len(samples) == 0 {
		return Summary{}
	}
	sorted := slices.Sorted(slices.Values(samples))
	return Summary{
		N:      len(sorted),
		Median: quantile(sorted, 0.5),
		Low:    quantile(sorted, 0.25),
		High:   quantile(sorted, 0.75),
		Min:    sorted[0],
		Max:    sorted[len(sorted)-1],
	}
}

// quantile interpolates between the two samples next to the rank, and rounds.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	value := sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
	return Round(value)
}

// Round rounds a number to six significant digits.
func Round(value float64) float64 {
	if value == 0 || math.IsInf(value, 0) || math.IsNaN(value) {
		return value
	}
	scale := math.Pow(10, 5-math.Floor(math.Log10(math.Abs(value))))
	return math.Round(value*scale) / scale
}

// Interval is a confidence interval of 90 %.
type Interval struct{ Low, High float64 }

// Ratio is a subject's median as a multiple of the floor's, with its confidence interval.
type Ratio struct {
	Value float64
	Interval
}

// resamples is the number of bootstrap resamples. The random numbers are the same each time.
const resamples = 2000

// RatioTo divides the median of samples by the lowest median of the floors. The interval is a bootstrap interval: it is
// taken from the ratios of resamples.
func RatioTo(samples []float64, floors [][]float64) Ratio {
	ratio := func(ours []float64, floors [][]float64) float64 {
		best := math.Inf(1)
		for _, f := range floors {
			best = min(best, Summarize(f).Median)
		}
		return Summarize(ours).Median / best
	}
	random := rand.New(rand.NewPCG(1, 2))
	draw := func(from []float64) []float64 {
		list := make([]float64, len(from))
		for i := range list {
			list[i] = from[random.IntN(len(from))]
		}
		return list
	}
	ratios := make([]float64, resamples)
	for i := range ratios {
		drawn := make([][]float64, len(floors))
		for j, f := range floors {
			drawn[j] = draw(f)
		}
		ratios[i] = ratio(draw(samples), drawn)
	}
	slices.Sort(ratios)
	return Ratio{
		Value:    ratio(samples, floors),
		Interval: Interval{quantile(ratios, 0.05), quantile(ratios, 0.95)},
	}
}

// Best returns the series with the lowest median among those that differ only in Point.Parallel.
func Best(list []Series) (Series, bool) {
	if len(list) == 0 {
		return Series{}, false
	}
	return slices.MinFunc(list, func(a, b Series) int {
		switch {
		case a.Summary.Median < b.Summary.Median:
			return -1
		case a.Summary.Median > b.Summary.Median:
			return 1
		}
		return 0
	}), true
}

// Floors returns the floor's series of a metric at a point, one for each measured Point.Parallel.
func (f *File) Floors(metric string, at Point) []Series {
	return slices.DeleteFunc(f.Of(metric, Floor), func(s Series) bool {
		s.At.Parallel = 0
		return s.At != at
	})
}

// RatioOf returns edgecore's ratio to the floor. It returns false unless both were measured in the same run: conditions
// differ too much between runs.
func (f *File) RatioOf(metric string, at Point) (Ratio, bool) {
	ours, ok := f.Find(metric, EdgeCore, at)
	if !ok {
		return Ratio{}, false
	}
	var floors [][]float64
	for _, s := range f.Floors(metric, at) {
		if s.Run == ours.Run {
			floors = append(floors, s.Samples)
		}
	}
	if len(floors) == 0 {
		return Ratio{}, false
	}
	return RatioTo(ours.Samples, floors), true
}
