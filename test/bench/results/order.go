package results

import (
	"bytes"
	"cmp"
	"regexp"
)

// compare orders series by metric, subject and point. It returns 0 for two series of the same measurement.
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

// small matches objects and lists that contain no objects or lists, to print them on one line.
var small = regexp.MustCompile(`(?s)(\{[^{}\[\]]*\}|\[[^{}\[\]]*\])`)

var space = regexp.MustCompile(`\n\s*`)

// compact puts each small object or list on one line, so that a diff of the file is easy to read. Strings are not
// affected: JSON escapes line breaks.
func compact(data []byte) []byte {
	return small.ReplaceAllFunc(data, func(text []byte) []byte {
		return bytes.TrimSpace(space.ReplaceAll(text, []byte(" ")))
	})
}
