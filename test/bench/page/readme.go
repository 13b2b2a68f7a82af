package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/edgecore-io/edgecore/test/bench/results"
)

// The lines of README around the table.
const (
	tableBegin = "<!-- table of bench/record.json, written by make bench-page -->"
	tableEnd   = "<!-- end of the table -->"
)

// markdown returns README's table, with a sentence that says when and where it was measured.
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
func replaceTable(text, table string) (string, error) {
	before, rest, found := strings.Cut(text, tableBegin+"\n")
	_, after, closed := strings.Cut(rest, tableEnd+"\n")
	if !found || !closed {
		return "", errors.New("the lines between which the table is are missing: " + tableBegin + " and " + tableEnd)
	}
	return before + tableBegin + "\n" + table + tableEnd + "\n" + after, nil
}
