package strict

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLines(t *testing.T) {
	text := `# comment: with a key
a:
  b: 1
  "c d": |
    x: not a key
     y: nor this
  e: 'f: g'
list:
- name: one
  value: 1
-   name: two
    nested:
    - - deep
      - x: 9
flow: {p: 1, q: {r: 2}}
map:
  kubernetes.io/os: linux
  url: tcp://host:1
a2:
    wide: 1
    wider: 2
last: 3
`
	x := indexLines([]byte(text))
	want := map[string]int{
		"a": 2, "a.b": 3, "a.c d": 4, "a.e": 7, "a.x": 2, "list": 8, "list[0]": 9, "list[0].name": 9,
		"list[0].value": 10,
		"list[1].name":  11, "list[1].nested": 12, "list[1].nested[0][0]": 13, "list[1].nested[0][1].x": 14,
		"list[7]": 8,
		"flow.p":  15, "flow.q.r": 15, "map[kubernetes.io/os]": 17, "map[url]": 18, "map[none]": 16, "a2.wider": 21,
		"last": 22, "nothing": 0, "": 0,
	}
	got := map[string]int{}
	for path := range want {
		got[path] = x.line(path)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := x.paths[14]; got != "list[1].nested[0][1].x" {
		t.Errorf("path of line 14 = %q, want %q", got, "list[1].nested[0][1].x")
	}
}

func TestLinesOfADeepFile(t *testing.T) {
	x := indexLines([]byte(strings.Repeat("- ", 9000) + "a: 1\nb:\n" + strings.Repeat(" ", 5) + "c: 1\n"))
	if got := x.line("b.c"); got != 3 {
		t.Errorf("line %d, want 3", got)
	}
	if len(x.lines) > 2*maxDepth {
		t.Errorf("%d paths kept, want at most %d", len(x.lines), 2*maxDepth)
	}
}

func TestEditDistance(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"maxpod", "maxpods", 1},
		{"kitten", "sitting", 3}, {"ab", "ba", 2},
	} {
		if got := editDistance(tc.a, tc.b); got != tc.want {
			t.Errorf("%q to %q: %d, want %d", tc.a, tc.b, got, tc.want)
		}
	}
}
