package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// worthALine is the time from which a test is reported although it passed, so that a long run shows its progress.
const worthALine = 5 * time.Second

// line returns what is printed when a test or a package has ended: nothing of a short test that passed.
func (o outcome) line() string {
	name := strings.TrimPrefix(o.pkg, module+"/")
	switch {
	case o.test != "" && o.action == "fail":
		return fmt.Sprintf("--- FAIL: %s %s (%.1f s)\n%s", name, o.test, o.elapsed.Seconds(), o.output)
	case o.test != "" && o.action == "skip":
		return fmt.Sprintf("--- SKIP: %s %s\n%s", name, o.test, o.output)
	case o.test != "" && o.elapsed >= worthALine && !strings.Contains(o.test, "/"):
		return fmt.Sprintf("--- pass: %s %s (%.1f s)\n", name, o.test, o.elapsed.Seconds())
	case o.test != "" || o.action == "skip": // a package with no tests
		return ""
	case o.action == "fail":
		return fmt.Sprintf("FAIL\t%s\t%.1f s\n%s", name, o.elapsed.Seconds(), o.output)
	}
	return fmt.Sprintf("ok  \t%s\t%.1f s\n", name, o.elapsed.Seconds())
}

// count returns how many tests ended in a way: subtests only if they were skipped.
func (r *result) count(action string) int {
	n := 0
	for _, j := range r.jobs {
		for _, o := range j.outcomes {
			if o.action == action && o.test != "" && (action == "skip" || !strings.Contains(o.test, "/")) {
				n++
			}
		}
	}
	return n
}

// shown reports whether a promise's test passed, and at least one subtest for each of the promise's rows: `go test`
// does not fail when -run selects no subtest. longest is the longest time of the test and its subtests, because a
// parent's time does not include parallel subtests.
func (r *result) shown(p promise) (longest time.Duration, ok bool) {
	passed, missing := false, slices.Clone(p.rows)
	for _, j := range r.jobs {
		for _, o := range j.outcomes {
			if o.action != "pass" || "./"+strings.TrimPrefix(o.pkg, module+"/") != p.pkg {
				continue
			}
			row, isRow := strings.CutPrefix(o.test, p.test+"/")
			if o.test == p.test || isRow {
				longest = max(longest, o.elapsed)
			}
			passed = passed || o.test == p.test
			missing = slices.DeleteFunc(missing, func(begin string) bool {
				return isRow && strings.HasPrefix(row, begin)
			})
		}
	}
	return longest, passed && len(missing) == 0
}

// verdict returns why the area has failed: a test or a command that failed, a promise that nothing has shown, a test
// that was skipped, or nothing tested at all.
func (r *result) verdict(a area) error {
	var errs []error
	for _, j := range r.jobs {
		if j.err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", j.job.name(), j.err))
		}
	}
	for _, c := range r.commands {
		if c.err != nil {
			errs = append(errs, c.err)
		}
	}
	for _, p := range a.promises {
		if _, ok := r.shown(p); !ok {
			errs = append(errs, fmt.Errorf("nothing has shown that %s: %s %s did not pass", p.says, p.pkg, p.test))
		}
	}
	if n := r.count("skip"); n > 0 && a.name == shortName {
		errs = append(errs, fmt.Errorf("%d tests were skipped, and what they show was not shown", n))
	}
	if r.count("pass") == 0 {
		errs = append(errs, errors.New("no test has passed"))
	}
	return errors.Join(errs...)
}

// report returns the table of packages, slowest first, the promises, and the closing lines.
func (r *result) report(a area, took time.Duration) string {
	var b strings.Builder
	type row struct {
		name    string
		elapsed time.Duration
		tests   int
	}
	var rows []row
	for _, j := range r.jobs {
		tests := map[string]int{}
		for _, o := range j.outcomes {
			if o.test != "" && !strings.Contains(o.test, "/") {
				tests[o.pkg]++
			}
		}
		for _, o := range j.outcomes {
			if o.test == "" && o.action != "skip" {
				rows = append(rows, row{strings.TrimPrefix(o.pkg, module+"/"), o.elapsed, tests[o.pkg]})
			}
		}
	}
	slices.SortStableFunc(rows, func(x, y row) int { return cmp.Compare(y.elapsed, x.elapsed) })
	fmt.Fprintf(&b, "\n==> %s: %s\n\n%8s  %5s  package\n", a.name, a.about, "seconds", "tests")
	for _, row := range rows {
		fmt.Fprintf(&b, "%8.1f  %5d  %s\n", row.elapsed.Seconds(), row.tests, row.name)
	}
	if len(a.promises) > 0 {
		fmt.Fprintf(&b, "\n%8s  promise\n", "seconds")
	}
	for _, p := range a.promises {
		if elapsed, ok := r.shown(p); ok {
			fmt.Fprintf(&b, "%8.1f  %s (%s %s)\n", elapsed.Seconds(), p.says, p.pkg, p.test)
		} else {
			fmt.Fprintf(&b, "%8s  %s (%s %s)\n", "MISSING", p.says, p.pkg, p.test)
		}
	}
	fmt.Fprintf(&b, "\n%s took %v\n", a.name, took.Round(time.Second))
	fmt.Fprintf(&b, "%d passed, %d failed, %d skipped\n", r.count("pass"), r.count("fail"), r.count("skip"))
	return b.String()
}
