package yamlbound

import (
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// bombs are texts of less than 1 MiB that would take far more.
func bombs() map[string]string {
	nested := "a: &a " + strings.Repeat("x", 100_000) + "\nb: &b [" + strings.Repeat("*a,", 100) + "]\nc: [" +
		strings.Repeat("*b,", 100) + "]\n"
	deep := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 30; i++ {
		deep += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10))
	}
	long := "a: &a " + strings.Repeat("x", 64<<10) + "\nb: ["
	return map[string]string{
		"an alias in its anchor": "a: &a {b: *a}",
		"thirty levels":          deep,
		"aliases to a text":      long + strings.Repeat("*a,", 200_000) + "]\n",
		"nested aliases":         nested,
		"merged mappings": "a: &a {k: " + strings.Repeat("x", 64<<10) + "}\nb: [" +
			strings.Repeat("{<<: *a},", 80_000) + "]\n",
		"aliases as keys": long + strings.Repeat("{*a : 1},", 80_000) + "]\n",
	}
}

func TestBombs(t *testing.T) {
	for name, text := range bombs() {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := Check([]byte(text), 1<<20)
			runtime.ReadMemStats(&after)
			if err == nil || !regexp.MustCompile("alias|contains itself").MatchString(err.Error()) {
				t.Errorf("error = %v, want one about aliases", err)
			}
			if got := (after.HeapSys - min(before.HeapSys, after.HeapSys)) >> 20; got > 200 {
				t.Errorf("it took %d MiB from the system, want 200 at the most", got)
			}
		})
	}
}

func TestOrdinary(t *testing.T) {
	for _, text := range []string{
		"", "{}", "a: b", "- 1\n- 2\n", "null", "a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}\n", "a: [", "\x00",
		"args: [sh, -c, 'a && b *c']\n", "a: &a ~\nb: *a\n", "a: [ # &*\n", "a: &a !!binary aGk=\nb: *a\n",
	} {
		if err := Check([]byte(text), 64); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	labels := "x: &l {app: a, tier: b}\n"
	for i := range 200 {
		labels += fmt.Sprintf("p%d: *l\n", i)
	}
	if err := Check([]byte(labels), 16<<10); err != nil {
		t.Error(err)
	}
}

// FuzzCheck: what passes is not larger, as JSON without its escapes, than the limit and what a value takes.
func FuzzCheck(f *testing.F) {
	f.Add("a: &a {x: 1}\nb: [*a, *a]\n")
	f.Add("a: &a [x]\nb: &b [*a, *a]\nc: {<<: {k: *b}}\n")
	f.Fuzz(func(t *testing.T, text string) {
		const limit = 256
		if len(text) > limit || Check([]byte(text), limit) != nil {
			return
		}
		raw, err := yaml.YAMLToJSON([]byte(text))
		if err == nil && len(raw) > 24*limit {
			t.Errorf("%q passes, and is %d bytes of JSON", text, len(raw))
		}
	})
}
