package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/edgecore-io/edgecore/test/bench/results"
)

// markers are the lines of a page around what is written.
type markers struct{ begin, end string }

var (
	// tableMarkers are around the table of docs/benchmarks.md, figuresMarkers around the figures of README.
	tableMarkers = markers{
		"<!-- table of bench/record.json, written by make bench-page -->", "<!-- end of the table -->",
	}
	figuresMarkers = markers{
		"<!-- figures of bench/record.json, written by make bench-page -->", "<!-- end of the figures -->",
	}
)

// figures returns README's table: what edgecore takes beside a kubelet, the ratio first.
func figures(f *results.File) string {
	var b strings.Builder
	b.WriteString("| | of a kubelet's | edgecore | kubelet |\n|---|---|---|---|\n")
	for _, r := range []row{
		{metric: results.CreateToken},
		{metric: results.BurstLast, at: results.Point{Pods: 30}},
		{metric: results.RSS, at: results.Point{Pods: 30}},
		{metric: results.CPU, at: results.Point{Pods: 30}},
		{metric: results.Written, at: results.Point{Pods: 30}},
	} {
		metric, _ := results.MetricOf(r.metric)
		ours, ok := f.Find(r.metric, results.EdgeCore, r.at)
		kubelets, both := f.Find(r.metric, results.Kubelet, r.at)
		if !ok || !both || kubelets.Summary.Median == 0 {
			continue
		}
		fmt.Fprintf(&b, "| %s | %.2f | %s | %s |\n", title(metric, r.at), ours.Summary.Median/kubelets.Summary.Median,
			results.Format(metric.Unit, ours.Summary.Median), results.Format(metric.Unit, kubelets.Summary.Median))
	}
	return b.String()
}

// markdown returns the table of docs/benchmarks.md, with a sentence that says when and where it was measured.
func markdown(f *results.File) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", sentence(f))
	b.WriteString("| what | kubelet | edgecore | floor | ratio | budget |\n|---|---|---|---|---|---|\n")
	for _, c := range table(f) {
		fmt.Fprintf(&b, "| %s |\n", strings.Join([]string{c.What, c.Kubelet, c.Edgecore, c.Floor, c.Ratio, c.Budget},
			" | "))
	}
	return b.String()
}

// sentence says when the newest run was, on what machine, and on what other processors earlier runs were.
func sentence(f *results.File) string {
	run, ok := newest(f)
	if !ok {
		return "Nothing is recorded yet."
	}
	text := fmt.Sprintf("Recorded on %s on %d cores (%s) with %s and %s.", run.Began.Format("2006-01-02"),
		run.Machine.Cores, run.Machine.Processor, containerdVersion(run.Programs["containerd"]),
		strings.Replace(run.Programs["kubelet"], "Kubernetes", "kubelet", 1))
	var others []string
	for _, r := range f.Runs {
		if p := r.Machine.Processor; p != run.Machine.Processor && !slices.Contains(others, p) {
			others = append(others, p)
		}
	}
	if len(others) > 0 {
		text += " Other rows come from earlier runs on another processor (" + strings.Join(others, ", ") +
			"); the page lists all runs."
	}
	return text
}

// containerdVersion shortens the output of containerd --version to name and version.
func containerdVersion(text string) string {
	fields := strings.Fields(text)
	if len(fields) < 3 {
		return "containerd"
	}
	return "containerd " + strings.TrimPrefix(fields[2], "v")
}

// newest returns the last run that included a kubelet.
func newest(f *results.File) (run results.Run, ok bool) {
	for _, r := range f.Runs {
		if r.Programs["kubelet"] != "" && (!ok || r.Began.After(run.Began)) {
			run, ok = r, true
		}
	}
	return run, ok
}

// replaceTable replaces the table between the two marker lines of a text.
func (m markers) replaceTable(text, table string) (string, error) {
	before, rest, found := strings.Cut(text, m.begin+"\n")
	_, after, closed := strings.Cut(rest, m.end+"\n")
	if !found || !closed {
		return "", errors.New("the lines between which the table is are missing: " + m.begin + " and " + m.end)
	}
	return before + m.begin + "\n" + table + m.end + "\n" + after, nil
}

// write replaces the table of a file.
func (m markers) write(file, table string) error {
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text, err := m.replaceTable(string(old), table)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	fmt.Println("wrote the table of", file)
	return nil
}
