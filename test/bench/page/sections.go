package main

import (
	"cmp"
	"fmt"
	"html/template"
	"slices"
	"strings"

	"github.com/edgecore-io/edgecore/test/bench/results"
	"github.com/edgecore-io/edgecore/test/bench/svg"
)

// section is a part of the page.
type section struct {
	ID, Title, Text string
	// Legend names the colors of all plots of the section.
	Legend []key
	Plots  []plot
	// Missing lists what has not been measured, with the commands that measure it.
	Missing []missing
}

// add adds a missing measurement, once.
func (s *section) add(m missing) {
	if !slices.Contains(s.Missing, m) {
		s.Missing = append(s.Missing, m)
	}
}

type key struct {
	Color int
	Name  string
}

type plot struct {
	Title string
	SVG   template.HTML
}

type missing struct{ What, Command string }

// colors are the numbers of the colors of subjects.
var colors = map[string]int{results.EdgeCore: 1, results.Kubelet: 2, results.Floor: 3, results.CloudCore: 4}

// names are what the page calls subjects.
var names = map[string]string{
	results.EdgeCore: "edgecore", results.Kubelet: "kubelet", results.Floor: "bare CRI", results.CloudCore: "cloudcore",
}

func legend(subjects ...string) []key {
	var keys []key
	for _, s := range subjects {
		keys = append(keys, key{colors[s], names[s]})
	}
	return keys
}

// sections are those of the page.
func sections(f *results.File) []section {
	return []section{latency(f), bursts(f), cost(f), growth(f), fleet(f)}
}

func formatter(unit results.Unit) svg.Format {
	return svg.Format{
		Value: func(v float64) string { return results.Format(unit, v) },
		Tick:  func(v float64) string { return results.FormatTick(unit, v) },
	}
}

// strip is a row of a strip plot.
func strip(name string, color int, s results.Series) svg.Strip {
	return svg.Strip{
		Name:    name,
		Color:   color,
		Samples: s.Samples,
		Low:     s.Summary.Low,
		Median:  s.Summary.Median,
		High:    s.Summary.High,
	}
}

// drawn returns a plot with the output of package svg.
func drawn(title, text string) plot {
	return plot{Title: title, SVG: template.HTML(text)} // svg escapes the texts that it is given
}

// latency is one pod at a time.
func latency(f *results.File) section {
	s := section{
		ID:    "latency",
		Title: "One pod",
		Text: "From the first call of the API to the event that a client sees. Each point is a pod, the band is the " +
			"middle half of them, the line their median. The floor is a program that makes the same calls of the " +
			"runtime and nothing else; it has no API in it.",
		Legend: legend(results.EdgeCore, results.Kubelet, results.Floor),
	}
	for _, name := range []string{results.CreateToken, results.CreatePlain, results.DeleteToken, results.DeletePlain} {
		metric, _ := results.MetricOf(name)
		var rows []svg.Strip
		for _, subject := range []string{results.Kubelet, results.EdgeCore, results.Floor} {
			if found, ok := f.Find(name, subject, results.Point{}); ok {
				rows = append(rows, strip(names[subject], colors[subject], found))
			}
		}
		if len(rows) == 0 {
			s.add(missing{"pods one at a time", metric.Command})
			continue
		}
		s.Plots = append(s.Plots, drawn(metric.Title, svg.Strips(metric.Title, rows, formatter(metric.Unit))))
	}
	return s
}

// burstSizes are the bursts that were measured, or would be.
func burstSizes(f *results.File) []int {
	sizes := []int{10, 20, 30}
	for _, s := range f.Of(results.BurstLast, results.EdgeCore) {
		sizes = append(sizes, s.At.Pods)
	}
	slices.Sort(sizes)
	return slices.Compact(sizes)
}

// bursts is many pods at once.
func bursts(f *results.File) section {
	s := section{
		ID:    "bursts",
		Title: "Many pods at once",
		Text: "All pods are created at once, and later deleted at once; each takes 1 s to end. The floor works " +
			"on as many pods at a time as its row says; edgecore is compared with the fastest of them.",
		Legend: legend(results.EdgeCore, results.Kubelet, results.Floor),
	}
	for _, size := range slices.Backward(burstSizes(f)) {
		for _, name := range []string{results.BurstFirst, results.BurstLast, results.BurstGone} {
			metric, _ := results.MetricOf(name)
			at := results.Point{Pods: size}
			heading := title(metric, at)
			var rows []svg.Strip
			for _, subject := range []string{results.Kubelet, results.EdgeCore} {
				if found, ok := f.Find(name, subject, at); ok {
					rows = append(rows, strip(names[subject], colors[subject], found))
				}
			}
			for _, found := range f.Floors(name, at) {
				rows = append(rows, strip(fmt.Sprintf("%d at a time", found.At.Parallel), colors[results.Floor], found))
			}
			if len(rows) > 0 {
				s.Plots = append(s.Plots, drawn(heading, svg.Strips(heading, rows, formatter(metric.Unit))))
			}
		}
	}
	s.Missing = burstsMissing(f, results.BurstLast)
	return s
}

// burstsMissing lists the bursts that were not measured.
func burstsMissing(f *results.File, name string) []missing {
	metric, _ := results.MetricOf(name)
	var left []string
	for _, size := range burstSizes(f) {
		if _, ok := f.Find(name, results.EdgeCore, results.Point{Pods: size}); !ok {
			left = append(left, fmt.Sprint(size))
		}
	}
	if len(left) == 0 {
		return nil
	}
	return []missing{{"bursts of " + strings.Join(left, ", ") + " pods",
		metric.Command + " --sizes " + strings.Join(left, ",")}}
}

// cost is the processor time of bursts.
func cost(f *results.File) section {
	s := section{
		ID:    "cpu",
		Title: "What a burst costs",
		Text: "Processor time from the first call until 1 s after the last pod is gone: of the agent and cloudcore, " +
			"and of the whole machine, most of which is the runtime and the control plane.",
		Legend: legend(results.EdgeCore, results.CloudCore, results.Kubelet),
	}
	for _, size := range slices.Backward(burstSizes(f)) {
		at := results.Point{Pods: size}
		var agents, machine []svg.Bar
		for _, subject := range []string{results.Kubelet, results.EdgeCore} {
			bar := svg.Bar{Name: names[subject]}
			if found, ok := f.Find(results.BurstCPU, subject, at); ok {
				bar.Parts = append(bar.Parts, svg.Part{
					Name: "agent", Color: colors[subject], Value: found.Summary.Median,
				})
			}
			if found, ok := f.Find(results.BurstCloud, results.CloudCore, at); ok && subject == results.EdgeCore {
				bar.Parts = append(bar.Parts, svg.Part{
					Name: "cloudcore", Color: colors[results.CloudCore], Value: found.Summary.Median,
				})
			}
			if len(bar.Parts) > 0 {
				agents = append(agents, bar)
			}
			if found, ok := f.Find(results.BurstMachine, subject, at); ok {
				machine = append(machine, svg.Bar{Name: names[subject], Parts: []svg.Part{
					{Name: "the whole machine", Color: colors[subject], Value: found.Summary.Median},
				}})
			}
		}
		heading := fmt.Sprintf("burst of %d", size)
		if len(agents) == 0 {
			continue
		}
		s.Plots = append(s.Plots,
			drawn(heading+": agent and cloudcore", svg.Bars(heading, agents, formatter(results.Seconds))),
			drawn(heading+": the whole machine", svg.Bars(heading, machine, formatter(results.Seconds))))
	}
	s.Missing = burstsMissing(f, results.BurstCPU)
	return s
}

// levels are the numbers of pods that the growth of an agent is shown over.
var levels = []int{0, 10, 30, 60, 110, 250}

// growth is what idle agents use.
func growth(f *results.File) section {
	s := section{
		ID:    "pods",
		Title: "What an idle node uses",
		Text: "0 pods is before the agent has ever run one. The others are after three bursts of 30: what an agent " +
			"keeps after work counts. Disk is what the agent itself writes; wire is all that goes between the agent " +
			"and its server, both ways, TLS included.",
		Legend: legend(results.EdgeCore, results.Kubelet),
	}
	for _, name := range []string{results.RSS, results.Anonymous, results.PSS, results.CPU, results.Wire,
		results.Written} {
		metric, _ := results.MetricOf(name)
		var lines []svg.Line
		for _, subject := range []string{results.Kubelet, results.EdgeCore} {
			lines = append(lines, svg.Line{Name: names[subject], Color: colors[subject],
				Points: points(f.Of(name, subject), func(at results.Point) int { return at.Pods })})
		}
		if empty(lines) {
			continue
		}
		s.Plots = append(s.Plots, drawn(metric.Title,
			svg.Lines(metric.Title, lines, svg.Axis{X: "pods", Format: formatter(metric.Unit)})))
	}
	var left []string
	for _, level := range levels {
		if _, ok := f.Find(results.RSS, results.EdgeCore, results.Point{Pods: level}); !ok {
			left = append(left, fmt.Sprint(level))
		}
	}
	if len(left) > 0 {
		numbers := strings.Join(left, ",")
		s.add(missing{"nodes with " + strings.Join(left, ", ") + " pods",
			"go run ./test/bench/peers --mode long --parts idle --levels " + numbers})
	}
	return s
}

func empty(lines []svg.Line) bool {
	return !slices.ContainsFunc(lines, func(l svg.Line) bool { return len(l.Points) > 0 })
}

// points are those of series over a number of their points, in ascending order.
func points(list []results.Series, over func(results.Point) int) []svg.Point {
	var out []svg.Point
	for _, s := range list {
		out = append(out, svg.Point{X: float64(over(s.At)), Y: s.Summary.Median, Low: s.Summary.Low,
			High: s.Summary.High})
	}
	slices.SortFunc(out, func(a, b svg.Point) int { return cmp.Compare(a.X, b.X) })
	return out
}
