package resource

import (
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/membound"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Key{
		"default/pod/web":   {"default", "pod", "web"},
		"null/node/edge1":   {"null", "node", "edge1"},
		"kube-system/pod":   {"kube-system", "pod", ""},
		"default/pod/a.b-c": {"default", "pod", "a.b-c"},
	} {
		got, err := Parse(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("Parse(%q) = %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "pod", "a//b", "/a/b", "a/b/", "a/b/c/d"} {
		if got, err := Parse(text); err == nil {
			t.Errorf("Parse(%q) = %+v, want an error", text, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("default/pod/web")
	f.Add(strings.Repeat("/", 64<<10))
	f.Add("default/pod/" + strings.Repeat("\x00", 64<<10))
	f.Add(strings.Repeat("\x00/", 32<<10))
	f.Fuzz(func(t *testing.T, text string) {
		var k Key
		var err error
		// The parts are parts of the text, and an error quotes its beginning.
		membound.Check(t, membound.Base, func() { k, err = Parse(text) })
		if err == nil && k.String() != text {
			t.Errorf("Parse(%q).String() = %q, want it as it was", text, k.String())
		}
	})
}
