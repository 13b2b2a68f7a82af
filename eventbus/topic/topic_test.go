package topic

import (
	"strings"
	"testing"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		filter, name string
		want         bool
	}{
		{"a/b", "a/b", true},
		{"a/b", "a", false},
		{"a", "a/b", false},
		{"a/+", "a/b", true},
		{"a/+", "a/", true},
		{"a/+", "a", false},
		{"a/+", "a/b/c", false},
		{"+/b", "a/b", true},
		{"+", "/a", false},
		{"+/+", "/a", true},
		{"#", "a/b/c", true},
		{"a/#", "a", true},
		{"a/#", "a/b/c", true},
		{"a/#", "ab", false},
		{"#", "$SYS/x", false},
		{"+/x", "$SYS/x", false},
		{"$SYS/#", "$SYS/x", true},
		{"$hw/events/device/+/+/twin/+", "$hw/events/device/ns/lamp/twin/update", true},
		{"$hw/events/device/+/+/twin/+", "$hw/events/device/ns/lamp/twin/update/result", false},
	} {
		if got := Match(c.filter, c.name); got != c.want {
			t.Errorf("Match(%q, %q) = %v, want %v", c.filter, c.name, got, c.want)
		}
	}
}

func TestCheck(t *testing.T) {
	long, deep := strings.Repeat("a", MaxBytes), strings.Repeat("/", MaxLevels-1)
	for s, want := range map[string]struct{ name, filter bool }{
		"a/b": {true, true}, "/": {true, true}, "+": {false, true}, "a/#": {false, true}, "#/a": {false, false},
		"a+/b": {false, false}, "": {false, false}, "a\x00": {false, false}, "\xff": {false, false},
		long: {true, true}, long + "a": {false, false}, deep: {true, true}, deep + "/": {false, false},
	} {
		if err := CheckName(s); (err == nil) != want.name {
			t.Errorf("CheckName(%.40q) = %v, want nil: %v", s, err, want.name)
		}
		if err := CheckFilter(s); (err == nil) != want.filter {
			t.Errorf("CheckFilter(%.40q) = %v, want nil: %v", s, err, want.filter)
		}
	}
}
