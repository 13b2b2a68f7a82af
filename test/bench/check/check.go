package main

import (
	"fmt"
	"strings"

	"github.com/edgecore-io/edgecore/test/bench/results"
)

// verdict is the result of comparing a ratio.
type verdict int

const (
	// good is a ratio that is not worse by more than allowed.
	good verdict = iota
	// noisy is a ratio that is worse by more than allowed, which the spread of the samples may explain.
	noisy
	// worse is a ratio that is worse by more than allowed, which the spread does not explain.
	worse
	// unmeasured is a ratio that was recorded and not measured.
	unmeasured
)

// comparison is a ratio to the floor, recorded and measured.
type comparison struct {
	metric             string
	at                 results.Point
	recorded, measured results.Ratio
	verdict            verdict
}

// compare compares each recorded ratio. allowed is how much worse a ratio may be: 0.15 is 15 %.
func compare(recorded, measured *results.File, allowed float64) []comparison {
	var list []comparison
	for _, s := range recorded.Series {
		if s.Subject != results.EdgeCore {
			continue
		}
		was, ok := recorded.RatioOf(s.Metric, s.At)
		if !ok {
			continue // a metric without a floor
		}
		c := comparison{metric: s.Metric, at: s.At, recorded: was, verdict: unmeasured}
		if is, ok := measured.RatioOf(s.Metric, s.At); ok {
			c.measured = is
			c.verdict = judge(was, is, allowed)
		}
		list = append(list, c)
	}
	return list
}

// judge compares two ratios. A ratio that is worse by more than allowed counts as noisy if the two confidence intervals
// overlap, and as worse if they do not.
func judge(recorded, measured results.Ratio, allowed float64) verdict {
	switch {
	case measured.Value <= recorded.Value*(1+allowed):
		return good
	case measured.Low <= recorded.High:
		return noisy
	}
	return worse
}

// change returns how much worse the ratio is, in percent; a negative number is an improvement.
func (c comparison) change() float64 { return 100 * (c.measured.Value/c.recorded.Value - 1) }

// String returns the comparison as a line of text.
func (c comparison) String() string {
	metric, _ := results.MetricOf(c.metric)
	what := metric.Title
	if c.at.Pods > 0 {
		what = fmt.Sprintf("%s, %d pods", what, c.at.Pods)
	}
	if c.verdict == unmeasured {
		return fmt.Sprintf("not measured  %s (recorded: %.2fx)", what, c.recorded.Value)
	}
	word := map[verdict]string{good: "ok", noisy: "noisy", worse: "WORSE"}[c.verdict]
	is, was := c.measured, c.recorded
	return fmt.Sprintf("%-12s  %s: %.2fx of the floor (%.2f to %.2f), recorded %.2fx (%.2f to %.2f): %+.0f %%", word,
		what, is.Value, is.Low, is.High, was.Value, was.Low, was.High, c.change())
}

// report lists comparisons. The error names the ratios that are worse. It is an error if nothing was compared.
func report(list []comparison, allowed float64) (string, error) {
	var lines, bad []string
	compared, unsure := 0, 0
	for _, c := range list {
		lines = append(lines, c.String())
		switch c.verdict {
		case good:
			compared++
		case noisy:
			compared++
			unsure++
		case worse:
			compared++
			metric, _ := results.MetricOf(c.metric)
			bad = append(bad, fmt.Sprintf("%s is %.0f %% worse", metric.Title, c.change()))
		case unmeasured:
		}
	}
	if unsure > 0 {
		lines = append(lines, "Noisy rows exceed the limit, but the spread of their samples may explain it: "+
			"measure again on a quiet machine, or with more --rounds and --repeats.")
	}
	text := strings.Join(lines, "\n") + "\n"
	if compared == 0 {
		return text, fmt.Errorf("no ratio is in both files: measure with --json first")
	}
	if len(bad) > 0 {
		return text, fmt.Errorf("%d of %d ratios to the floor are more than %.0f %% worse than recorded: %s", len(bad),
			compared, 100*allowed, strings.Join(bad, "; "))
	}
	return text, nil
}
