package prober

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// TestTally: how a row of attempts becomes a verdict. s: success, f: failure, w: a success with a warning, ?: nothing
// was learned.
func TestTally(t *testing.T) {
	for name, c := range map[string]struct {
		spec     v1.Probe
		attempts string
		want     string // the verdict after each attempt
	}{
		"defaults":                          {v1.Probe{}, "fffsfff", "??fsssf"},
		"one success, one failure":          {v1.Probe{SuccessThreshold: 1, FailureThreshold: 1}, "sfsf", "sfsf"},
		"three successes":                   {v1.Probe{SuccessThreshold: 3, FailureThreshold: 1}, "ssfsssf", "??fffsf"},
		"what is broken does not add up":    {v1.Probe{FailureThreshold: 2}, "sfsfsff", "ssssssf"},
		"what was not learned changes none": {v1.Probe{FailureThreshold: 2}, "s?f?f", "ssssf"},
		"a warning is a success":            {v1.Probe{FailureThreshold: 1}, "fw", "fs"},
	} {
		var tl tally
		got := ""
		for _, r := range c.attempts {
			tl = tl.withResult(result(strings.IndexRune("?sfw", r)), &c.spec)
			got += "?sfw"[tl.verdict : tl.verdict+1]
		}
		if got != c.want {
			t.Errorf("%s: %s came to %s, want %s", name, c.attempts, got, c.want)
		}
	}
}

func TestOver(t *testing.T) {
	for _, c := range []struct {
		kind    kind
		verdict result
		want    bool
	}{
		{startup, unknown, false}, {startup, success, true}, {startup, failure, true},
		{readiness, success, false}, {readiness, failure, false},
		{liveness, success, false}, {liveness, failure, true},
	} {
		if got := (tally{verdict: c.verdict}).isOver(c.kind); got != c.want {
			t.Errorf("%s with verdict %s: over %v, want %v", c.kind, c.verdict, got, c.want)
		}
	}
}
