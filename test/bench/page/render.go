package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"slices"
	"strings"

	"github.com/edgecore-io/edgecore/test/bench/results"
)

//go:embed page.html
var pageHTML string

// content is the data of the template.
type content struct {
	Sentence string
	Table    []cells
	Sections []section
	Runs     []results.Run
}

// render returns the page. The same results always give the same page.
func render(f *results.File) ([]byte, error) {
	t, err := template.New("page").Funcs(template.FuncMap{"format": runText, "two": twoLines}).Parse(pageHTML)
	if err != nil {
		return nil, err
	}
	runs := slices.Clone(f.Runs)
	slices.SortFunc(runs, func(a, b results.Run) int { return b.Began.Compare(a.Began) })
	var out bytes.Buffer
	err = t.Execute(&out, content{Sentence: sentence(f), Table: table(f), Sections: sections(f), Runs: runs})
	return out.Bytes(), err
}

// twoLines puts the text after a median on a line of its own.
func twoLines(text string) template.HTML {
	median, more, _ := strings.Cut(text, " (")
	if more == "" {
		median, more, _ = strings.Cut(text, ", ")
	} else if at := strings.Index(more, ")"); at >= 0 {
		more = more[:at] + more[at+1:]
	}
	out := "<b>" + template.HTMLEscapeString(median) + "</b>"
	if more != "" {
		out += "<small>" + template.HTMLEscapeString(more) + "</small>"
	}
	return template.HTML(out)
}

// runText describes the machine of a run.
func runText(m results.Machine) string {
	text := fmt.Sprintf("%d cores, %s, %.1f GB, Linux %s", m.Cores, m.Processor, float64(m.MemoryMB)/1024, m.Kernel)
	if m.FileSystem != "" {
		text += ", " + m.FileSystem
	}
	return text
}
