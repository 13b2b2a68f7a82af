package env

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestExpand(t *testing.T) {
	lookup := Lookup([]*runtimeapi.KeyValue{{Key: "A", Value: []byte("a")}, {Key: "B", Value: []byte("$(A)")},
		{Key: "E"}, {Key: "x y", Value: []byte("odd")}})
	for text, want := range map[string]string{
		"":             "",
		"plain":        "plain",
		"$(A)":         "a",
		"<$(A)$(A)>":   "<aa>",
		"$(B)":         "$(A)", // once only
		"$(E)":         "",
		"$(NO)":        "$(NO)",
		"$(x y)":       "odd",
		"$$(A)":        "$(A)",
		"$$$(A)":       "$a",
		"$$$$(A)":      "$$(A)",
		"$":            "$",
		"$$":           "$",
		"$$$":          "$$",
		"a$":           "a$",
		"$A":           "$A",
		"${A}":         "${A}",
		"$(A":          "$(A",
		"$(A $(A)":     "$(A $(A)", // a name ends at the first ')'
		"$(A $$":       "$(A $",
		"$()":          "$()",
		"$($(A))":      "$($(A))",
		"$(NO)$(A)":    "$(NO)a",
		")$(A)(":       ")a(",
		"€$(A)ß$":      "€aß$",
		"$(A)\x00$(A)": "a\x00a",
	} {
		if got := Expand(text, lookup); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestExpandAll(t *testing.T) {
	vars := []*runtimeapi.KeyValue{{Key: "A", Value: []byte("a b")}}
	if diff := cmp.Diff([]string{"sh", "-c", "echo a b $(B)", ""}, ExpandAll([]string{"sh", "-c", "echo $(A) $(B)", ""},
		vars)); diff != "" {
		t.Errorf("ExpandAll mismatch (-want +got):\n%s", diff)
	}
	if got := ExpandAll(nil, vars); got != nil {
		t.Errorf("ExpandAll(nil) = %v, want nil: the image's own command would not be used", got)
	}
}

// FuzzExpand checks what holds for any text: with every '$' doubled it comes back as it is; with no variable
// known, so does all but "$$"; what it yields is bounded.
func FuzzExpand(f *testing.F) {
	for _, s := range []string{"", "$(A)", "$$(A)", "$(A", "$($(A))$", "a$$$(B)c)"} {
		f.Add(s, "value$(A)$$")
	}
	f.Fuzz(func(t *testing.T, text, value string) {
		known := func(string) (string, bool) { return value, true }
		unknown := func(string) (string, bool) { return "", false }
		if got := Expand(strings.ReplaceAll(text, "$", "$$"), known); got != text {
			t.Errorf("Expand of %q doubled = %q, want it as it was", text, got)
		}
		if !strings.Contains(text, "$$") {
			if got := Expand(text, unknown); got != text {
				t.Errorf("Expand(%q) with nothing known = %q, want it as it was", text, got)
			}
		}
		got := Expand(text, known)
		if refs := strings.Count(text, "$("); len(got) > len(text)+refs*len(value) {
			t.Errorf("Expand(%q) has %d bytes, want at most %d", text, len(got), len(text)+refs*len(value))
		}
		if !strings.Contains(text, "$(") && !strings.Contains(text, "$$") && got != text {
			t.Errorf("Expand(%q) = %q, want it as it was", text, got)
		}
	})
}
