package memsize

import (
	"reflect"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

type part struct {
	name string
	next *part
	list []int64
}

func TestOf(t *testing.T) {
	one := int(reflect.TypeFor[part]().Size())
	for name, c := range map[string]struct {
		value any
		want  int
	}{
		"nothing":                {(*part)(nil), 0},
		"text":                   {strings.Repeat("x", 1000), 1000},
		"text that is escaped":   {strings.Repeat("<", 1000), 6000},
		"structs without fields": {make([]part, 10), 10 * one},
		"what structs refer to":  {part{name: "abc", next: &part{list: make([]int64, 3)}}, 3 + one + 24},
		"a map":                  {map[string]string{"ab": "cd"}, entryBytes + 32 + 4},
		"bytes":                  {make([]byte, 7), 7},
	} {
		if got := Of(reflect.ValueOf(c.value)); got != c.want {
			t.Errorf("%s: Of() = %d, want %d", name, got, c.want)
		}
	}
}
