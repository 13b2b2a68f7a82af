package differential

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Difference is a path whose values differ between two nodes.
type Difference struct {
	Path string
	// Left and Right are the values of the last run; nil if the path was never there.
	Left, Right []string
}

// String is the difference in lines, for a failure's message.
func (d Difference) String() string {
	return fmt.Sprintf("%s\n    left:  %s\n    right: %s", d.Path, show(d.Left), show(d.Right))
}

// show prints values so that a reader sees where they begin and end.
func show(values []string) string {
	if len(values) == 0 {
		return "(never there)"
	}
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = fmt.Sprintf("%q", v)
	}
	return strings.Join(quoted, " -> ")
}

// Compare returns the paths that differ, in their order. Each argument has one trace for each run; a path differs if no
// run of the left node had the values of any run of the right one.
func Compare(left, right []Trace) []Difference {
	paths := map[string]bool{}
	for _, t := range slices.Concat(left, right) {
		for path := range t {
			paths[path] = true
		}
	}
	var out []Difference
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		if !everEqual(left, right, path) {
			out = append(out, Difference{Path: path, Left: left[len(left)-1][path], Right: right[len(right)-1][path]})
		}
	}
	return out
}

func everEqual(left, right []Trace, path string) bool {
	for _, l := range left {
		for _, r := range right {
			if slices.EqualFunc(l[path], r[path], alike) {
				return true
			}
		}
	}
	return false
}

// Allowed is a difference that is there on purpose.
type Allowed struct {
	// Case, Path, Left and Right are regular expressions that must match all of the case's name, the path, and the
	// values as joined with " -> ". An empty one matches everything.
	Case, Path, Left, Right string
	// Skipped: both sides begin and end with the same value, and one of them has left out some of those between.
	Skipped bool
	// With is a regular expression of another difference that must be there as well: its path, a space, and its left
	// values.
	With string
	// Without is a regular expression of values that do not count: both sides have the same without them.
	Without string
	// Row is the first cell of the row of docs/differences.md that gives the reason.
	Row string
}

// Matches reports whether a difference of a case is this one.
func (a Allowed) Matches(testCase string, d Difference) bool {
	if a.Skipped && !skipped(d.Left, d.Right) && !skipped(d.Right, d.Left) {
		return false
	}
	if a.Without != "" && !slices.Equal(without(a.Without, d.Left), without(a.Without, d.Right)) {
		return false
	}
	return matches(a.Case, testCase) && matches(a.Path, d.Path) &&
		matches(a.Left, strings.Join(d.Left, " -> ")) && matches(a.Right, strings.Join(d.Right, " -> "))
}

// accompanied reports whether the difference With is among those that were found.
func (a Allowed) accompanied(found []Difference) bool {
	return a.With == "" || slices.ContainsFunc(found, func(d Difference) bool {
		return matches(a.With, d.Path+" "+strings.Join(d.Left, " -> "))
	})
}

// without returns values without those that match a pattern. What then follows itself is one value.
func without(pattern string, values []string) []string {
	rest := slices.DeleteFunc(slices.Clone(values), func(v string) bool { return matches(pattern, v) })
	return slices.Compact(rest)
}

// skipped reports whether some has the values of all in their order, with the first and the last one.
func skipped(all, some []string) bool {
	return len(all) > 0 && len(some) > 0 && all[0] == some[0] && leftOut(all, some)
}

// leftOut reports whether some has the values of all in their order, with the last one.
func leftOut(all, some []string) bool {
	if len(all) == 0 || len(some) == 0 || all[len(all)-1] != some[len(some)-1] {
		return false
	}
	next := 0
	for _, v := range all {
		if next < len(some) && some[next] == v {
			next++
		}
	}
	return next == len(some)
}

func matches(pattern, text string) bool {
	return pattern == "" || regexp.MustCompile("(?s)^(?:"+pattern+")$").MatchString(text)
}

// Unlisted returns the differences that no entry of a list allows.
func Unlisted(testCase string, found []Difference, list []Allowed) []Difference {
	return slices.DeleteFunc(slices.Clone(found), func(d Difference) bool {
		return slices.ContainsFunc(list, func(a Allowed) bool { return a.Matches(testCase, d) && a.accompanied(found) })
	})
}
