package crilog

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/pkg/filewatch/filewatchtest"
)

// TestTorn: what a power cut has left of the last record is shown, at the end of the log and of its older part, and
// without a text there is nothing to show. A record that was appended to what was left is shown as one.
func TestTorn(t *testing.T) {
	one, two := entry(1, "stdout F one"), entry(2, "stderr F two")
	torn := strings.TrimSuffix(entry(2, "stdout F last wo"), "\n")
	for name, c := range map[string]struct {
		older, log string
		opts       Options
		want       string
	}{
		"end":       {"", one + torn, Options{Tail: -1}, "one\nlast wo"},
		"only line": {"", torn, Options{Tail: -1}, "last wo"},
		"tail 1":    {"", one + torn, Options{Tail: 1}, "last wo"},
		"tail 2":    {"", one + torn, Options{Tail: 2}, "one\nlast wo"},
		"timestamps": {
			"", torn, Options{Tail: 1, Timestamps: true}, "2026-01-01T00:00:02.500000000Z last wo",
		},
		"older part":           {torn, one, Options{Tail: -1}, "last wo\none\n"},
		"older part, tail":     {torn, one, Options{Tail: 2}, "last wo\none\n"},
		"in the tag":           {"", one + "2026-01-01T00:00:02.5Z stdout F", Options{Tail: -1}, "one\n"},
		"in the stream":        {"", one + "2026-01-01T00:00:02.5Z std", Options{Tail: -1}, "one\n"},
		"in the time":          {"", one + "2026-01-01T00:0", Options{Tail: -1}, "one\n"},
		"a piece":              {"", one + "not a record", Options{Tail: -1}, "one\nnot a record"},
		"appended to a text":   {"", torn + two, Options{Tail: -1}, "last wo" + two[:len(two)-1] + "\n"},
		"appended to a time":   {"", "2026-01-01T00:0" + two, Options{Tail: -1}, "two\n"},
		"appended to a stream": {"", "2026-01-01T00:00:02.5Z std" + two, Options{Tail: -1}, "two\n"},
		"appended to zeroes":   {"", "\x00\x00\x00" + two + one, Options{Tail: -1}, "two\none\n"},
		"appended to a piece":  {"", "ext of before " + two, Options{Tail: -1}, "ext of before two\n"},
		"appended, too old": {"", "2026-01-01T00:0" + one + two, Options{
			Tail: -1, Since: time.Date(2026, 1, 1, 0, 0, 2, 0, time.UTC),
		}, "two\n"},
	} {
		for _, follow := range []bool{false, true} {
			dir := t.TempDir()
			path := filepath.Join(dir, "0.log")
			write(t, path, c.log)
			if c.older != "" {
				write(t, path+".20260101-000000", c.older)
			}
			opts := c.opts
			opts.Follow, opts.Watcher = follow, filewatchtest.New(t)
			var out bytes.Buffer
			err := PrintAttempt(t.Context(), path, &out, &out, opts, func() bool { return false })
			if err != nil || out.String() != c.want {
				t.Errorf("%s, follow %v: %q, %v; want %q", name, follow, out.String(), err, c.want)
			}
		}
	}
}

// TestGrowing: without Follow an answer ends where the log ended when it was opened, however much is written meanwhile.
func TestGrowing(t *testing.T) {
	for tail, want := range map[int64]int{-1: 100, 5: 5, 1000: 100} {
		path := filepath.Join(t.TempDir(), "0.log")
		for i := range 100 {
			write(t, path, entry(1, fmt.Sprintf("stdout F %d", i)))
		}
		lines := 0
		out := writerFunc(func(p []byte) (int, error) {
			lines += bytes.Count(p, []byte("\n"))
			if lines > 1000 {
				return 0, io.ErrShortWrite
			}
			return len(p), add(path, entry(2, "stdout F meanwhile"))
		})
		if err := PrintAttempt(t.Context(), path, out, out, Options{Tail: tail}, nil); err != nil || lines != want {
			t.Errorf("tail %d: %d lines, %v; want %d", tail, lines, err, want)
		}
	}
}

// TestWhileItIsRotated: a log that has been renamed, and not yet opened again by the runtime, is read from its part.
func TestWhileItIsRotated(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "0.log"), entry(1, "stdout F of the attempt before"))
	write(t, filepath.Join(dir, "1.log.20260101-000000"), entry(1, "stdout F one"))
	for name, print := range map[string]func(out io.Writer) error{
		"newest": func(out io.Writer) error { return Print(t.Context(), dir, out, out, Options{Tail: -1}) },
		"attempt": func(out io.Writer) error {
			return PrintAttempt(t.Context(), filepath.Join(dir, "1.log"), out, out, Options{Tail: -1}, nil)
		},
	} {
		var out bytes.Buffer
		if err := print(&out); err != nil || out.String() != "one\n" {
			t.Errorf("%s: %q, %v; want \"one\\n\"", name, out.String(), err)
		}
	}
}

// TestFollowManyRotations: a log that was rotated more than once between two looks is followed part by part.
func TestFollowManyRotations(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, entry(1, "stdout F one"))
	var out bytes.Buffer
	looks := 0
	alive := func() bool {
		if looks++; looks > 1 {
			return looks < 3
		}
		for i, text := range []string{"two", "three", "four"} {
			if err := os.Rename(path, path+fmt.Sprintf(".20260101-00000%d", i)); err != nil {
				t.Error(err)
			}
			write(t, path, entry(2, "stdout F "+text))
		}
		return true
	}
	opts := Options{Tail: -1, Follow: true, Watcher: filewatchtest.New(t)}
	err := PrintAttempt(t.Context(), path, &out, nil, opts, alive)
	if want := "one\ntwo\nthree\nfour\n"; err != nil || out.String() != want {
		t.Errorf("%q, %v; want %q", out.String(), err, want)
	}
}

func TestLast(t *testing.T) {
	long := strings.Repeat("x", 10_000) + " the cause"
	var short strings.Builder
	for i := range 3000 {
		short.WriteString(entry(1, fmt.Sprintf("stdout F %04d", i)))
	}
	parts := ""
	for range 4 {
		parts += entry(1, "stdout P "+strings.Repeat("y", 16<<10))
	}
	for name, c := range map[string]struct {
		older, log  string
		lines, size int
		want        string
	}{
		"empty":             {"", "", 80, 2048, ""},
		"short":             {"", entry(1, "stdout F one") + entry(1, "stderr F two"), 80, 2048, "one\ntwo\n"},
		"long line":         {"", entry(1, "stdout F "+long), 80, 2048, (long + "\n")[len(long)+1-2048:]},
		"long line, before": {"", entry(1, "stdout F "+long) + entry(1, "stdout F a"), 80, 12, "the cause\na\n"},
		"parts":             {"", parts + entry(1, "stdout F end"), 80, 10, "yyyyyyend\n"},
		"lines":             {"", short.String(), 3, 2048, "2997\n2998\n2999\n"},
		"many lines":        {"", short.String(), 2000, 10_000, short.String()},
		"torn":              {"", entry(1, "stdout F one") + "2026-01-01T00:00:02Z stdout F tw", 80, 2048, "one\ntw"},
		"rotated":           {entry(1, "stdout F one"), entry(1, "stdout F two"), 80, 2048, "one\ntwo\n"},
		"rotated, enough":   {entry(1, "stdout F one"), entry(1, "stdout F two"), 1, 2048, "two\n"},
		"longer than a window": {
			"", entry(1, "stdout F "+strings.Repeat("z", 2*maxWindow)), 80, 2048, strings.Repeat("z", 2047) + "\n",
		},
	} {
		path := filepath.Join(t.TempDir(), "0.log")
		write(t, path, c.log)
		if c.older != "" {
			write(t, path+".20260101-000000", c.older)
		}
		if name == "many lines" {
			c.want = ""
			for i := range 2000 {
				c.want += fmt.Sprintf("%04d\n", 1000+i)
			}
		}
		got, err := Last(path, c.lines, c.size)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %d bytes %.60q, %v; want %d bytes %.60q", name, len(got), got, err, len(c.want), c.want)
		}
	}
}
