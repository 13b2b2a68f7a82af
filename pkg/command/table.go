package command

import (
	"strings"
	"text/tabwriter"
)

// Table returns rows of two cells as lines of a help text: indented by two columns, the second cells in one column. It
// has no newline at its end.
func Table(rows ...[2]string) string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		_, _ = w.Write([]byte("  " + row[0] + "\t" + row[1] + "\n")) // to memory
	}
	_ = w.Flush()
	return strings.TrimSuffix(out.String(), "\n")
}
