package differential

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// maxSummaryRows bounds the rows of docs/differences.md that a summary lists.
const maxSummaryRows = 30

// Summary counts what was compared in a test. Its methods may be called at the same time.
type Summary struct {
	mu sync.Mutex
	// cases were compared in attempts, with so many steps each time.
	cases, steps, attempts int
	// paths were compared, of which so many were equal in some attempt; the rest are in rows or unlisted.
	paths, equal, unlisted int
	// values are those of all paths on both nodes.
	values int
	// rows counts the differences that each row of docs/differences.md allowed.
	rows map[string]int
}

// Add adds a case that was compared. Each argument but the case has one trace for each attempt.
func (s *Summary) Add(c Case, left, right []Trace, list []Allowed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rows == nil {
		s.rows = map[string]int{}
	}
	paths := map[string]bool{}
	for _, t := range slices.Concat(left, right) {
		for path, values := range t {
			paths[path] = true
			s.values += len(values)
		}
	}
	found := Compare(left, right)
	s.cases++
	s.attempts += len(left)
	s.steps += len(left) * len(c.Steps)
	s.paths += len(paths)
	s.equal += len(paths) - len(found)
	for _, d := range found {
		i := slices.IndexFunc(list, func(a Allowed) bool { return a.Matches(c.Name, d) })
		if i < 0 {
			s.unlisted++
			continue
		}
		s.rows[list[i].Row]++
	}
}

// String is a table for a reader, of at most maxSummaryRows rows and a few lines more.
func (s *Summary) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	listed := 0
	for _, n := range s.rows {
		listed += n
	}
	var out strings.Builder
	line := func(n int, text string) { fmt.Fprintf(&out, "%9d  %s\n", n, text) }
	line(s.cases, "cases")
	line(s.attempts, "attempts: a case with differences runs again")
	line(s.steps, "steps")
	line(s.values, "values seen on both nodes")
	line(s.paths, "paths compared")
	line(s.equal, "of them equal")
	line(s.unlisted, "not listed")
	line(listed, "allowed, by these rows of docs/differences.md:")
	rows := slices.SortedFunc(maps.Keys(s.rows), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.rows[b], s.rows[a]), cmp.Compare(a, b))
	})
	for i, row := range rows {
		if i == maxSummaryRows {
			fmt.Fprintf(&out, "%11s  and %d rows more\n", "", len(rows)-i)
			break
		}
		fmt.Fprintf(&out, "%11d  %s\n", s.rows[row], row)
	}
	return strings.TrimRight(out.String(), "\n")
}
