package main

import (
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/bench/results"
)

// file has one ratio: edgecore's samples beside the floor's at two levels.
func file(ours, floor4, floor8 []float64) *results.File {
	f := &results.File{Schema: results.Schema}
	at := func(n int) results.Point { return results.Point{Pods: 30, Parallel: n} }
	f.Add(results.Run{ID: "run"}, []results.Series{
		{Metric: results.BurstLast, Subject: results.EdgeCore, At: at(0), Samples: ours},
		{Metric: results.BurstLast, Subject: results.Floor, At: at(4), Samples: floor4},
		{Metric: results.BurstLast, Subject: results.Floor, At: at(8), Samples: floor8},
		{Metric: results.BurstCPU, Subject: results.EdgeCore, At: at(0), Samples: ours}, // has no floor
	})
	return f
}

func TestCompare(t *testing.T) {
	recorded := file([]float64{3.2, 3.3, 3.4}, []float64{3, 3, 3}, []float64{2.9, 3, 3.1})
	for what, c := range map[string]struct {
		measured *results.File
		want     verdict
	}{
		"the same": {recorded, good},
		"14 % worse": {
			file([]float64{3.75, 3.76, 3.76}, []float64{3, 3, 3}, []float64{3, 3, 3}), good,
		},
		"20 % worse, hardly any spread": {
			file([]float64{3.95, 3.96, 3.97}, []float64{3, 3, 3}, []float64{3, 3, 3}), worse,
		},
		"20 % worse, samples all over": {
			file([]float64{2.9, 3.96, 5}, []float64{2.5, 3, 3.5}, []float64{2.5, 3, 3.5}), noisy,
		},
		"all is twice as slow": {file([]float64{6.4, 6.6, 6.8}, []float64{6, 6, 6}, []float64{6, 6, 6}), good},
		"the best floor counts": {
			file([]float64{3.2, 3.3, 3.4}, []float64{3, 3, 3}, []float64{2.4, 2.4, 2.4}), worse,
		},
		"nothing measured": {&results.File{Schema: results.Schema}, unmeasured},
	} {
		list := compare(recorded, c.measured, 0.15)
		if len(list) != 1 {
			t.Fatalf("%s: %d comparisons, want 1: %v", what, len(list), list)
		}
		if got := list[0].verdict; got != c.want {
			t.Errorf("%s: verdict %d, want %d: %v", what, got, c.want, list[0])
		}
	}
}

func TestReport(t *testing.T) {
	recorded := file([]float64{3, 3, 3}, []float64{3, 3, 3}, []float64{3, 3, 3})
	slow := file([]float64{4, 4, 4}, []float64{3, 3, 3}, []float64{3, 3, 3})
	wide := file([]float64{2.5, 4, 5}, []float64{2, 3, 4}, []float64{2, 3, 4})
	for what, c := range map[string]struct {
		measured  *results.File
		line, err string
	}{
		"good":    {recorded, "ok ", ""},
		"worse":   {slow, "1.33x of the floor", "burst, last Running is 33 % worse"},
		"noisy":   {wide, "Noisy rows", ""},
		"nothing": {&results.File{Schema: results.Schema}, "not measured", "no ratio is in both files"},
	} {
		text, err := report(compare(recorded, c.measured, 0.15), 0.15)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(text, c.line) || (c.err == "") != (got == "") || !strings.Contains(got, c.err) {
			t.Errorf("%s: report is %q and error %q, want %q and %q in them", what, text, got, c.line, c.err)
		}
	}
}
