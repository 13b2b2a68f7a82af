package source

import (
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

// TestHugeManifests: a file with more than pods on one node can have is refused with the reason, and of many faults the
// first are told.
func TestHugeManifests(t *testing.T) {
	const head, tail = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[`, `]}}`
	pod := head + `{"name":"a","image":"b"}` + tail + "\n---\n"
	aliases := "a: &a " + strings.Repeat("x", 64<<10) + "\nb: [" + strings.Repeat("*a,", 99<<10) + "]\n"
	for name, tc := range map[string]struct{ text, want string }{
		"parts":              {membound.Repeat(head, `{}`, `,`, tail, 2<<20), "split it into several files"},
		"objects":            {membound.Repeat(head, `{}`, `,`, tail, 200<<10), "more than 50000 objects"},
		"lines":              {strings.Repeat("\n", maxParts+1), "split it into several files"},
		"aliases":            {aliases, "stand for too much"},
		"aliases after JSON": {pod + aliases, "stand for too much"},
		"aliases after YAML": {"# a pod\n" + pod + aliases, "stand for too much"},
		"aliases in braces":  {"{" + strings.ReplaceAll(strings.TrimSpace(aliases), "\n", ", ") + "}", "too much"},
		"faults":             {membound.Repeat(head, `{}`, `,`, tail, 48<<10), "spec.containers[0].name"},
	} {
		_, _, err := Decode([]byte(tc.text), "n")
		if err == nil || !strings.Contains(err.Error(), tc.want) || len(err.Error()) > 64<<10 {
			t.Errorf("%s: %.300v, want %q", name, err, tc.want)
		}
	}
	if got := objects([]byte(`{"a":"{\"{","b":[{},{}]}`)); got != 3 {
		t.Errorf("objects = %d, want 3: braces in strings do not count", got)
	}
}
