package crilog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/edgecore-io/edgecore/pkg/filewatch/filewatchtest"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

const stamp = "2026-01-01T00:00:0%d.5Z"

func entry(second int, rest string) string {
	return fmt.Sprintf(stamp, second) + " " + rest + "\n"
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := add(path, content); err != nil {
		t.Fatal(err)
	}
}

// add writes to the end of a file.
func add(path, content string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	return errors.Join(err, f.Close())
}

func TestPrint(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "0.log"), entry(1, "stdout F old"))
	write(t, filepath.Join(dir, "10.log"),
		entry(2, "stdout F one")+entry(3, "stdout P tw")+entry(3, "stdout F o")+entry(4, "stderr F bad")+
			entry(5, "stdout F ")+"damaged\n")
	write(t, filepath.Join(dir, "9.log"), entry(1, "stdout F before"))
	write(t, filepath.Join(dir, "10.log.20260101-000002"), entry(1, "stdout F rotated"))
	write(t, filepath.Join(dir, "10.log.20260101-000001"), entry(1, "stdout F rotated before"))
	write(t, filepath.Join(dir, "10.log.20260101-000003.gz"), "compressed\n")
	part := filepath.Join(dir, "10.log.20260101-000002")
	if err := os.Chtimes(part, time.Time{}, time.Date(2026, 1, 1, 0, 0, 2, 0, time.UTC)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		opts     Options
		out, err string
	}{
		"all":      {Options{Tail: -1}, "rotated\none\ntwo\n\ndamaged\n", "bad\n"},
		"tail":     {Options{Tail: 2}, "\ndamaged\n", ""},
		"tail 0":   {Options{Tail: 0}, "", ""},
		"six":      {Options{Tail: 6}, "one\ntwo\n\ndamaged\n", "bad\n"},
		"seven":    {Options{Tail: 7}, "rotated\none\ntwo\n\ndamaged\n", "bad\n"},
		"long":     {Options{Tail: 100}, "rotated\none\ntwo\n\ndamaged\n", "bad\n"},
		"previous": {Options{Tail: -1, Previous: true}, "before\n", ""},
		"since":    {Options{Tail: -1, Since: time.Date(2026, 1, 1, 0, 0, 4, 0, time.UTC)}, "\ndamaged\n", "bad\n"},
		"times": {
			Options{Tail: 3, Timestamps: true}, "2026-01-01T00:00:05.500000000Z \ndamaged\n",
			"2026-01-01T00:00:04.500000000Z bad\n",
		},
		"limit":   {Options{Tail: -1, Limit: 13}, "rotated\none\nt", ""},
		"no more": {Options{Tail: -1, Limit: 1000}, "rotated\none\ntwo\n\ndamaged\n", "bad\n"},
	} {
		var out, errOut bytes.Buffer
		if err := Print(t.Context(), dir, &out, &errOut, c.opts); err != nil {
			t.Errorf("%s: %v, want no error", name, err)
		}
		if out.String() != c.out || errOut.String() != c.err {
			t.Errorf("%s: %q and %q, want %q and %q", name, out.String(), errOut.String(), c.out, c.err)
		}
	}
	if err := Print(t.Context(), filepath.Join(dir, "none"), nil, nil, Options{}); !errors.Is(err, ErrNoLog) {
		t.Errorf("err = %v, want ErrNoLog", err)
	}
}

// safeBuffer may be read while it is written.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// printed waits until a text has been printed.
func printed(t *testing.T, out *safeBuffer, want string) {
	t.Helper()
	wait.Until(t, "the log to be printed", func() error {
		if got := out.String(); got != want {
			return fmt.Errorf("printed %q, want %q", got, want)
		}
		return nil
	})
}

// TestFollow goes on over growth in parts, a rotation and a restart.
func TestFollow(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	current := filepath.Join(dir, "0.log")
	write(t, current, entry(1, "stdout F one"))
	ctx, cancel := context.WithCancel(t.Context())
	var out safeBuffer
	ended := make(chan error, 1)
	opts := Options{Tail: -1, Follow: true, Watcher: filewatchtest.New(t)}
	go func() { ended <- Print(ctx, dir, &out, &out, opts) }()
	want := ""
	expect := func(text string) {
		t.Helper()
		want += text
		printed(t, &out, want)
	}
	expect("one\n")
	write(t, current, strings.TrimSuffix(entry(2, "stdout F two"), "wo\n"))
	write(t, current, "wo\n")
	expect("two\n")
	if err := os.Rename(current, current+".20260101-000000"); err != nil {
		t.Fatal(err)
	}
	write(t, current+".20260101-000000", entry(3, "stdout F three"))
	write(t, current, entry(4, "stdout F four"))
	expect("three\nfour\n")
	write(t, filepath.Join(dir, "1.log"), entry(5, "stdout F five"))
	expect("five\n")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestFollowAttempt ends when the container has ended, goes on over a rotation, and not into the next attempt.
func TestFollowAttempt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	current := filepath.Join(dir, "3.log")
	write(t, current, entry(1, "stdout F one")+entry(1, "stderr F err"))
	var out safeBuffer
	var over atomic.Bool
	alive := func() bool {
		if !over.Load() {
			return true
		}
		if err := add(current, entry(4, "stdout F last words")); err != nil {
			t.Error(err)
		}
		return false
	}
	caught := make(chan struct{}, 100)
	opts := Options{
		Tail: -1, Follow: true, Watcher: filewatchtest.New(t),
		Caught: func() error { caught <- struct{}{}; return nil },
	}
	ended := make(chan error, 1)
	go func() {
		ended <- PrintAttempt(t.Context(), current, &out, nil, opts, alive)
	}()
	<-caught
	if err := os.Rename(current, current+".20260101-000000"); err != nil {
		t.Fatal(err)
	}
	write(t, current, entry(2, "stdout F two"))
	write(t, filepath.Join(dir, "4.log"), entry(3, "stdout F of the next attempt"))
	printed(t, &out, "one\ntwo\n")
	over.Store(true)
	write(t, filepath.Join(dir, "5.log"), "") // wakes the one who follows
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if want := "one\ntwo\nlast words\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

// TestLastWords: what a runtime writes until lastWords after the container ended is printed. Nothing shortens that
// time: neither a change, nor the periodic check.
func TestLastWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "0.log")
		write(t, path, entry(1, "stdout F one"))
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { f.Close() }()
		var out safeBuffer
		changed := make(chan struct{}, 1)
		var ended time.Time
		looks := 0
		alive := func() bool {
			if looks++; looks < 3 {
				return true // the periodic check asks again
			}
			time.Sleep(followCheck) // the next check is due when this returns
			changed <- struct{}{}
			ended = time.Now()
			time.AfterFunc(lastWords-1, func() {
				if err := add(path, entry(2, "stdout F last words")); err != nil {
					t.Error(err)
				}
			})
			return false
		}
		p := &printer{ctx: t.Context(), out: &out, opts: Options{Tail: -1, Follow: true}}
		course := course{newest: func() (string, error) { return path, nil }, alive: alive}
		if err := p.followEvents(t.Context(), &f, course, changed); err != nil {
			t.Error(err)
		}
		if got, want := out.String(), "one\nlast words\n"; got != want {
			t.Errorf("printed %q, want %q", got, want)
		}
		if waited := time.Since(ended); waited != lastWords {
			t.Errorf("followed for %v after the end, want %v", waited, lastWords)
		}
	})
}

// TestNoEndOfLine prints a damaged log of one line without holding it in memory.
func TestNoEndOfLine(t *testing.T) {
	dir := t.TempDir()
	raw := strings.Repeat("x", 3*maxLine)
	write(t, filepath.Join(dir, "0.log"), raw+"\n")
	var out bytes.Buffer
	if err := Print(t.Context(), dir, &out, &out, Options{Tail: -1}); err != nil {
		t.Fatal(err)
	}
	if got := strings.ReplaceAll(out.String(), "\n", ""); got != raw {
		t.Errorf("%d bytes, want %d", len(got), len(raw))
	}
	if out.Len() < len(raw)+3 {
		t.Errorf("%d bytes in all, want %d or more: the line went out as a whole", out.Len(), len(raw)+3)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(strings.TrimSpace(entry(1, "stdout F text"))))
	f.Add([]byte("x stdout P"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if line, ok := Parse(raw); ok && !bytes.HasSuffix(raw, line.Text) {
			t.Errorf("Parse(%q): text %q, want its end", raw, line.Text)
		}
	})
}
