package keytable

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgecore-io/edgecore/pkg/apis/strict"
)

// settings has a value of each type that a table has a method for.
type settings struct {
	Enable  bool
	Server  string
	Count   int32
	Limit   *int32
	Period  metav1.Duration
	Maximum *metav1.Duration
	Shown   *bool
	Names   []string
}

func (s *settings) keys(t *Table) {
	t.Section("part.", s.Enable)
	t.Bool("enable", &s.Enable, true, Restart)
	t.String("server", &s.Server, "192.0.2.1:80", Reload).HostPort()
	t.Int32("count", &s.Count, 3, Reload|ZeroIsValue).Within(0, 9)
	t.Int32Ptr("limit", &s.Limit, 4, Ignored).AtLeast(1)
	t.Duration("period", &s.Period, time.Minute, Restart).Positive()
	t.DurationPtr("maximum", &s.Maximum, time.Hour, Restart).NotNegative()
	t.BoolPtr("shown", &s.Shown, true, Absent)
	Check(t.Row("names", Restart), s.Names, func(c *strict.Checker, path string, names []string) {
		if len(names) > 1 {
			c.Fail(path, len(names), "one name")
		}
	})
}

// TestPasses: one table lists the keys, and sets and checks their values.
func TestPasses(t *testing.T) {
	list := &Table{Pass: ListKeys}
	(&settings{}).keys(list)
	want := []Key{
		{"part.enable", Restart}, {"part.server", Reload}, {"part.count", Reload}, {"part.limit", Ignored},
		{"part.period", Restart}, {"part.maximum", Restart}, {"part.shown", Absent}, {"part.names", Restart},
	}
	if diff := cmp.Diff(want, list.Keys); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	if got := UsedAs(list.Keys, Reload, Absent); len(got) != 3 || !got["part.server"] || !got["part.shown"] {
		t.Errorf("UsedAs = %v, want the server, the count and shown", got)
	}

	defaults := settings{
		Enable: true, Server: "192.0.2.1:80", Count: 3, Limit: new(int32(4)),
		Period:  metav1.Duration{Duration: time.Minute},
		Maximum: &metav1.Duration{Duration: time.Hour}, Shown: new(true),
	}
	set := settings{Server: "other", Count: 7, Names: []string{"kept"}}
	set.keys(&Table{Pass: SetDefaults})
	defaults.Names = []string{"kept"}
	if diff := cmp.Diff(defaults, set); diff != "" {
		t.Errorf("SetDefaults (-want +got):\n%s", diff)
	}
	filled := settings{Server: "other:1", Limit: new(int32(0))}
	filled.keys(&Table{Pass: FillZeros})
	want2 := defaults
	want2.Server, want2.Count, want2.Limit, want2.Names = "other:1", 0, new(int32(0)), nil
	if diff := cmp.Diff(want2, filled); diff != "" {
		t.Errorf("FillZeros keeps what is set, and a zero that is a value (-want +got):\n%s", diff)
	}
}

// TestChecks: each value that is wrong is one problem with its path; values that are unset, or of a section that is
// switched off, are none.
func TestChecks(t *testing.T) {
	wrong := settings{
		Enable: true, Server: "nowhere", Count: 10, Limit: new(int32(0)),
		Maximum: &metav1.Duration{Duration: -1}, Names: []string{"a", "b"},
	}
	check := func(s settings) []string {
		c := &strict.Checker{}
		s.keys(&Table{Pass: CheckValues, Checker: c})
		var paths []string
		for _, p := range c.Problems {
			paths = append(paths, p.Path)
		}
		return paths
	}
	want := []string{"part.server", "part.count", "part.limit", "part.period", "part.maximum", "part.names"}
	if diff := cmp.Diff(want, check(wrong)); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	wrong.Limit, wrong.Maximum = nil, nil
	if diff := cmp.Diff([]string{"part.server", "part.count", "part.period", "part.names"}, check(wrong)); diff != "" {
		t.Errorf("with unset values (-want +got):\n%s", diff)
	}
	wrong.Enable = false
	if got := check(wrong); got != nil {
		t.Errorf("of a section that is off: %v, want none", got)
	}
}
