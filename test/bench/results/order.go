package results

import (
	"bytes"
	"cmp"
	"regexp"
)

// compare orders series by metric, subject and point; 0 for two that are the same but for their samples.
func compare(a, b Series) int {
	return cmp.Or(
		cmp.Compare(a.Metric, b.Metric),
		cmp.Compare(a.Subject, b.Subject),
		cmp.Compare(a.At.Nodes, b.At.Nodes),
		cmp.Compare(a.At.Replicas, b.At.Replicas),
		cmp.Compare(a.At.Pods, b.At.Pods),
		cmp.Compare(a.At.Parallel, b.At.Parallel),
	)
}

// small matches what fits on a line: an object or a list without objects and lists in it.
var small = regexp.MustCompile(`(?s)(\{[^{}\[\]]*\}|\[[^{}\[\]]*\])`)

var space = regexp.MustCompile(`\n\s*`)

// compact puts small objects and lists on a line each, so that a change of the file is easy to read. Texts of the file
// have no line breaks, which JSON escapes.
func compact(data []byte) []byte {
	return small.ReplaceAllFunc(data, func(text []byte) []byte {
		return bytes.TrimSpace(space.ReplaceAll(text, []byte(" ")))
	})
}
