package clock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// TestWrong: a clock that is before what is over is not set, unless a time server keeps it.
func TestWrong(t *testing.T) {
	built := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	bound := Newest(Bound{time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), "the certificate was made"},
		Bound{built, "this program was built"}, Bound{})
	for name, c := range map[string]struct {
		now  time.Time
		sync bool
		in   Bound
		want string
	}{
		"1970": {
			time.Unix(10, 0), false, bound,
			"it says 1970-01-01T00:00:10Z, which is in the past: this program was built at 2026-05-01T00:00:00Z",
		},
		"just before":     {built.Add(-time.Second), false, bound, "2026-04-30T23:59:59Z"},
		"later":           {built.Add(time.Second), false, bound, ""},
		"in years":        {built.AddDate(30, 0, 0), false, bound, ""},
		"a server's word": {time.Unix(10, 0), true, bound, ""},
		"nothing known":   {time.Unix(10, 0), false, Bound{}, ""},
	} {
		got := Doubt(c.now, c.sync, c.in)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestWritten(t *testing.T) {
	dir := t.TempDir()
	old, young := filepath.Join(dir, "old"), filepath.Join(dir, "young")
	at := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, when := range map[string]time.Time{old: at.AddDate(-1, 0, 0), young: at} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, when, when); err != nil {
			t.Fatal(err)
		}
	}
	if b := Written("x", young, old, filepath.Join(dir, "none")); !b.Time.Equal(at.Add(-tolerance)) || b.Of != "x" {
		t.Errorf("Written = %+v, want %v of x", b, at.Add(-tolerance))
	}
	if b := Written("x", filepath.Join(dir, "none")); !b.Time.IsZero() {
		t.Errorf("Written of a file that is not there = %+v, want no time", b)
	}
}

// TestSince: a time keeps its distance from now.
func TestSince(t *testing.T) {
	began := time.Now()
	now := began.Add(time.Minute)
	if got := Since(began, now); now.Sub(got) != time.Minute || !Since(time.Time{}, now).IsZero() {
		t.Errorf("Since(%v, %v) = %v, want a minute before the second", began, now, got)
	}
	// What has no monotonic reading stays.
	wall := time.Unix(100, 0)
	if got := Since(wall, time.Unix(200, 0)); !got.Equal(wall) {
		t.Errorf("Since(%v, 200) = %v, want the first", wall, got)
	}
}

// script is a kernel that says what it is told to.
type script struct {
	arms, waits []error
	armed       int
}

func (s *script) arm() error {
	s.armed++
	return take(&s.arms)
}

func (s *script) wait() error { return take(&s.waits) }

func take(list *[]error) error {
	if len(*list) == 0 {
		return errors.New("over")
	}
	err := (*list)[0]
	*list = (*list)[1:]
	return err
}

// TestFollow: each time that the clock is set counts once, also one between two looks.
func TestFollow(t *testing.T) {
	s := &script{
		arms: []error{nil, nil, unix.ECANCELED, nil}, waits: []error{unix.ECANCELED, &os.PathError{Err: unix.ECANCELED},
			unix.ECANCELED},
	}
	set := 0
	err := follow(t.Context(), s, func() { set++ })
	if err == nil || !strings.Contains(err.Error(), "over") || set != 3 || s.armed != 4 {
		t.Errorf("follow: %v, set %d times, armed %d times; want over, 3 and 4", err, set, s.armed)
	}
}

// TestWatch: the kernel accepts the timer, and Watch ends with its context. That it reports a clock that was set is
// shown in test/vm, on a machine whose clock may be set.
func TestWatch(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := Watch(ctx, func() { t.Error("Watch reported that the clock was set, want no report") }); err != nil {
		t.Error(err)
	}
	Synchronized() // depends on the machine; that it does not panic is all there is to test
}
