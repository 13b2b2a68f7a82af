package setflag

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestApply(t *testing.T) {
	type tree = map[string]any
	for text, want := range map[string]tree{
		"":                                {},
		"a=b":                             {"a": "b"},
		"a.b.c=1,a.b.d=true":              {"a": tree{"b": tree{"c": 1.0, "d": true}}},
		"a=,b=x=y, c=null":                {"a": "", "b": "x=y", "c": nil},
		`a\.b/c=x\,y`:                     {"a.b/c": "x,y"},
		"a={x,2, true},b={}":              {"a": []any{"x", 2.0, true}, "b": []any{}},
		"a={{1,2},{3}}":                   {"a": []any{[]any{1.0, 2.0}, []any{3.0}}},
		"a=no,b=y,c=010":                  {"a": "no", "b": "y", "c": "010"},
		"a=b: c":                          {"a": "b: c"},
		"a=192.0.2.1,b=10s":               {"a": "192.0.2.1", "b": "10s"},
		"keep.new=1":                      {"keep": tree{"new": 1.0}},
		`a=ends with \`:                   {"a": `ends with \`},
		"a=[1]":                           {"a": "[1]"},
		"a.b={unix:///run/x,y},a.c=\"1\"": {"a": tree{"b": []any{"unix:///run/x", "y"}, "c": "1"}},
	} {
		got := tree{}
		if err := Apply(got, text); err != nil {
			t.Errorf("%q: %v", text, err)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
	for text, want := range map[string]string{
		"a": "want KEY=VALUE", "=b": "a part of the key is empty", "a..b=c": "a part of the key is empty",
		"a[0]=b": "a list is given as a whole", "text.b=c": "text has no keys below it",
	} {
		if err := Apply(tree{"text": "x"}, text); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "--set "+text) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzApply(f *testing.F) {
	f.Add("a.b={x,y},c\\.d=1")
	f.Add("a={{}")
	f.Fuzz(func(_ *testing.T, text string) {
		_ = Apply(map[string]any{"a": map[string]any{}}, text)
	})
}
