package main

import (
	"fmt"
	"strings"

	"github.com/edgecore-io/edgecore/test/bench/results"
)

// row is a row of the table in docs/benchmarks.md and on the page.
type row struct {
	metric string
	at     results.Point
	// budget is the most that the figure may be, as text; "" means no budget.
	budget string
}

// rows returns the rows of the table, in their order.
func rows() []row {
	burst := results.Point{Pods: 30}
	list := []row{
		{results.CreateToken, results.Point{}, "floor + 60 ms"},
		{results.CreatePlain, results.Point{}, "floor + 50 ms"},
		{results.DeleteToken, results.Point{}, "floor + 0.1 s"},
		{results.DeletePlain, results.Point{}, "floor + 0.1 s"},
		{results.BurstFirst, burst, "0.6 s"},
		{results.BurstLast, burst, "1.10x floor + 0.5 s"},
		{results.BurstGone, burst, "1.15x floor"},
		{results.BurstLast, results.Point{Pods: 10}, ""},
		{results.BurstLast, results.Point{Pods: 20}, ""},
		{results.BurstCPU, burst, ""},
		{results.BurstCloud, burst, ""},
		{results.BurstMachine, burst, ""},
		{results.RSS, results.Point{}, "32 MB"},
		{results.Anonymous, results.Point{}, "8 MB"},
		{results.RSS, burst, "36 MB"},
		{results.Anonymous, burst, "13 MB"},
		{results.PSS, burst, ""},
		{results.CPU, burst, "0.3 %"},
		{results.Written, burst, "0"},
		{results.Wire, burst, "0.5 KB/min"},
		{results.RSS, results.Point{Pods: 110}, ""},
		{results.RSS, results.Point{Pods: 250}, ""},
	}
	for _, at := range []results.Point{
		{Nodes: 1000, Replicas: 1}, {Nodes: 5000, Replicas: 1}, {Nodes: 10000, Replicas: 3},
	} {
		list = append(list,
			row{results.CloudLive, at, "60 KB"},
			row{results.CloudP99, at, "0.1 s"},
			row{results.CloudStorm, at, "10 s"})
	}
	return list
}

// cells are the texts of a row.
type cells struct{ What, Kubelet, Edgecore, Floor, Ratio, Budget string }

// table returns the rows that have results.
func table(f *results.File) []cells {
	var list []cells
	for _, r := range rows() {
		if c, ok := r.cells(f); ok {
			list = append(list, c)
		}
	}
	return list
}

// cells returns the texts of a row; false if neither edgecore nor cloudcore has results for it.
func (r row) cells(f *results.File) (cells, bool) {
	metric, _ := results.MetricOf(r.metric)
	ours, ok := f.Find(r.metric, results.EdgeCore, r.at)
	if !ok {
		ours, ok = f.Find(r.metric, results.CloudCore, r.at)
	}
	if !ok {
		return cells{}, false
	}
	c := cells{What: title(metric, r.at), Edgecore: figure(metric.Unit, ours), Budget: budget(r.budget)}
	if s, ok := f.Find(r.metric, results.Kubelet, r.at); ok {
		c.Kubelet = figure(metric.Unit, s)
	}
	if s, ok := results.Best(f.Floors(r.metric, r.at)); ok {
		c.Floor = figure(metric.Unit, s)
		if s.At.Parallel > 0 {
			c.Floor += fmt.Sprintf(", %d at a time", s.At.Parallel)
		}
	}
	if ratio, ok := f.RatioOf(r.metric, r.at); ok {
		c.Ratio = fmt.Sprintf("%.2fx", ratio.Value)
	}
	return c, true
}

func budget(limit string) string {
	if limit == "" {
		return ""
	}
	return "<= " + limit
}

// title returns the title of a metric at a point.
func title(m results.Metric, at results.Point) string {
	switch {
	case at.Nodes > 0:
		return fmt.Sprintf("%s, %s, %d nodes", m.Title, cloudcores(at.Replicas), at.Nodes)
	case strings.HasPrefix(m.Title, "burst,"):
		return fmt.Sprintf("burst of %d,%s", at.Pods, strings.TrimPrefix(m.Title, "burst,"))
	case results.IsBurst(m.Name):
		return strings.Replace(m.Title, "one burst", fmt.Sprintf("a burst of %d", at.Pods), 1)
	case m.Unit == results.Seconds:
		return m.Title
	case at.Pods == 0:
		return m.Title + ", 0 pods, fresh"
	}
	return fmt.Sprintf("%s, %d pods", m.Title, at.Pods)
}

func cloudcores(n int) string {
	if n == 1 {
		return "1 cloudcore"
	}
	return fmt.Sprintf("%d cloudcores", n)
}

// figure returns a median, with its quartiles if there are at least three samples.
func figure(unit results.Unit, s results.Series) string {
	text := results.Format(unit, s.Summary.Median)
	low, high := results.Format(unit, s.Summary.Low), results.Format(unit, s.Summary.High)
	if s.Summary.N < 3 || low == high {
		return text
	}
	number, unitText, _ := strings.Cut(low, " ")
	if _, same, _ := strings.Cut(high, " "); same == unitText {
		low = number
	}
	return fmt.Sprintf("%s (%s to %s)", text, low, high)
}
