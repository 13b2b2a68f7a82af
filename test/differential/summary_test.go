package differential

import "testing"

func TestSummary(t *testing.T) {
	left := []Trace{{"a": {"1"}, "b": {"1", "2"}, "c": {"1"}, "d": {"1"}}}
	right := []Trace{{"a": {"1"}, "b": {"2"}, "c": {"3"}}}
	var s Summary
	s.Add(Case{Name: "one", Steps: []Step{Running()}}, left, right,
		[]Allowed{{Path: "b", Row: "row b"}, {Path: "c", Row: "row c"}, {Path: "[bc]", Row: "never"}})
	s.Add(Case{Name: "two"}, append(left, Trace{"b": {"2"}}), append(right, Trace{"b": {"2"}}),
		[]Allowed{{Path: "c", Row: "row c"}})
	const want = `
        2  cases
        3  attempts: a case with differences runs again
        1  steps
       18  values seen on both nodes
        8  paths compared
        5  of them equal
        1  not listed
        2  allowed, by these rows of docs/differences.md:
          1  row b
          1  row c`
	if got := s.String(); got != want[1:] {
		t.Errorf("summary =\n%s\nwant%s", got, want)
	}
}
