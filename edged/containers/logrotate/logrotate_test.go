package logrotate

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/edgecore-io/edgecore/edged/containers/logdir"
	"github.com/edgecore-io/edgecore/pkg/filewatch"
	"github.com/edgecore-io/edgecore/test/testenv/leak"
	"github.com/edgecore-io/edgecore/test/testenv/membound"
	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

var long = flag.Bool("long", false, "try ten times as many moments at which a log is rotated")

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

func TestPlan(t *testing.T) {
	t0 := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(size int64, after time.Duration) sighting { return sighting{size, t0.Add(after)} }
	for name, c := range map[string]struct {
		before, now sighting
		interval    time.Duration
		want        step
	}{
		"first look":            {sighting{}, at(10, 0), 10 * time.Second, step{wait: soonest}},
		"first look, full":      {sighting{}, at(100, 0), 10 * time.Second, step{rotate: true}},
		"nothing was written":   {at(10, 0), at(10, time.Second), 10 * time.Second, step{quiet: true}},
		"full":                  {at(10, 0), at(100, time.Second), 10 * time.Second, step{rotate: true}},
		"trickles":              {at(10, 0), at(11, time.Second), 10 * time.Second, step{wait: growing}},
		"trickles, often asked": {at(10, 0), at(11, time.Second), time.Second, step{wait: time.Second}},
		"full in 2 s":           {at(10, 0), at(40, time.Second), 10 * time.Second, step{wait: time.Second}},
		"floods":                {at(10, 0), at(90, time.Second), 10 * time.Second, step{wait: soonest}},
		"cut short":             {at(50, 0), at(10, time.Second), 10 * time.Second, step{wait: growing}},
		"the clock stood still": {at(10, 0), at(20, 0), 10 * time.Second, step{wait: growing}},
		"asked without a pause": {at(10, 0), at(11, time.Second), time.Millisecond, step{wait: soonest}},
	} {
		if diff := cmp.Diff(c.want, plan(100, c.interval, c.before, c.now), cmp.AllowUnexported(step{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestSurplus(t *testing.T) {
	parts := func(sizes ...int64) []part {
		var list []part
		for i, s := range sizes {
			list = append(list, part{path: fmt.Sprint(i), size: s})
		}
		return list
	}
	for name, c := range map[string]struct {
		parts []part
		count int
		bytes int64
		gone  int
	}{
		"none":           {nil, 3, 100, 0},
		"all fit":        {parts(10, 10, 10), 3, 100, 0},
		"too many":       {parts(10, 10, 10), 1, 100, 2},
		"too large":      {parts(60, 60, 30), 3, 100, 1},
		"one too large":  {parts(10, 101), 3, 100, 2},
		"none is wanted": {parts(1, 1), 0, 100, 2},
	} {
		if got := surplus(c.parts, c.count, c.bytes); len(got) != c.gone || len(got) > 0 && got[0].path != "0" {
			t.Errorf("%s: %v, want the first %d", name, got, c.gone)
		}
	}
}

// TestStampsRise: also when the clock is set back, and when there is more than one a second.
func TestStampsRise(t *testing.T) {
	now := time.Date(2026, 5, 4, 3, 2, 1, 5, time.UTC)
	if got := nextStamp(nil, now); got != "20260504-030201" {
		t.Errorf("nextStamp = %s, want 20260504-030201", got)
	}
	same, ok := parsePart("0.log", "0.log.20260504-030201.gz")
	if !ok || !same.gz {
		t.Fatalf("parsePart = %+v, %v; want a compressed part", same, ok)
	}
	for name, now := range map[string]time.Time{"same second": now, "1970": time.Unix(7, 0)} {
		if got := nextStamp([]part{same}, now); got != "20260504-030202" {
			t.Errorf("%s: nextStamp = %s, want 20260504-030202", name, got)
		}
	}
	for _, name := range []string{
		"0.log", "0.log.gz", "0.log.20260504-030201.gz.tmp", "0.log.20260504", "10.log.20260504-030201",
		"0.log.20269999-000000",
	} {
		if p, ok := parsePart("0.log", name); ok {
			t.Errorf("parsePart(0.log, %s) = %+v, true, want false", name, p)
		}
	}
}

func FuzzParsePart(f *testing.F) {
	f.Add("0.log.20260504-030201.gz")
	f.Add("0.log.")
	f.Fuzz(func(t *testing.T, name string) {
		var p part
		var ok bool
		membound.Check(t, membound.Linear(len(name), 16), func() { p, ok = parsePart("0.log", name) })
		if !ok {
			return
		}
		want := "0.log." + p.stamp.Format(stampForm)
		if p.gz {
			want += gzSuffix
		}
		if want != name {
			t.Errorf("%q is taken for %q", name, want)
		}
	})
}

// writer writes a log as a runtime does: into the file that it opened, until it is told to open another.
type writer struct {
	mu       sync.Mutex
	path     string
	f        *os.File
	n        int
	refuse   bool
	reopened int
}

func newWriter(t *testing.T, path string) *writer {
	w := &writer{path: path}
	if err := w.reopen(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.f.Close() })
	return w
}

func (w *writer) reopen(context.Context, string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse {
		return errors.New("not now")
	}
	f, err := os.OpenFile(w.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	if w.f != nil {
		w.f.Close()
		w.reopened++
	}
	w.f = f
	return nil
}

// rotations is how often another file was opened.
func (w *writer) rotations() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reopened
}

// lines writes n numbered lines of 100 bytes.
func (w *writer) lines(t *testing.T, n int) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	var b bytes.Buffer
	for range n {
		fmt.Fprintf(&b, "%-99d\n", w.n)
		w.n++
	}
	if _, err := w.f.Write(b.Bytes()); err != nil {
		t.Fatal(err)
	}
}

func start(t *testing.T, opts Options) *Rotator {
	t.Helper()
	r := New(opts)
	var err error
	if r.watch, err = newWatch(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	r.Changed()
	return r
}

// TestUnwatched: where no inotify instance is left, logs are checked periodically, which is reported. Once there is
// one, it is used, and that is reported.
func TestUnwatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reports := make(chan error, 10)
		logs := []Log{{"c", filepath.Join(t.TempDir(), "0.log"), "n/p/c"}}
		write := func(size int) {
			if err := os.WriteFile(logs[0].Path, make([]byte, size), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write(10)
		r := New(Options{
			MaxSize: 10_000, MaxFiles: 3, Interval: time.Minute,
			Logs:      func() []Log { return logs },
			Unwatched: func(err error) { reports <- err },
		})
		var left, opened atomic.Bool
		r.open = func() (*watch, error) {
			if !left.Load() {
				return nil, os.NewSyscallError("inotify_init1", unix.EMFILE)
			}
			opened.Store(true)
			return nil, nil // a watch of the kernel would hold up the simulated clock
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		defer func() {
			cancel()
			<-ended
		}()
		r.Changed()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := len(reports); n != 1 {
			t.Fatalf("%d reports, want 1", n)
		}
		if err := <-reports; !errors.Is(err, unix.EMFILE) ||
			!strings.Contains(err.Error(), "fs.inotify.max_user_instances") {
			t.Errorf("report = %v, want too many open files, and what to raise", err)
		}
		left.Store(true)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := len(reports); n != 1 || !opened.Load() {
			t.Fatalf("opened %v, %d more reports; want another instance, and 1", opened.Load(), n)
		}
		if err := <-reports; err != nil {
			t.Errorf("report = %v, want nil once there is an instance", err)
		}
	})
}

// TestNoWatchLeft: a log that the kernel's limit of watches keeps from being watched is reported, until it is gone.
func TestNoWatchLeft(t *testing.T) {
	var reports []error
	r := New(Options{Unwatched: func(err error) { reports = append(reports, err) }, Logs: func() []Log { return nil }})
	r.reportUnwatched()
	r.logs["c"] = &watched{limit: filewatch.NoWatch(unix.ENOSPC)}
	r.reportUnwatched()
	r.reportUnwatched()
	r.refresh(time.Now())
	r.reportUnwatched()
	if len(reports) != 2 || !errors.Is(reports[0], unix.ENOSPC) || reports[1] != nil {
		t.Errorf("reports = %v, want that no watch is left, and nil", reports)
	}
}

// content is all that is kept of a log, the oldest first, and how many files and bytes that takes.
func content(t *testing.T, log string) (text string, files int, bytes int64) {
	t.Helper()
	parts, err := partsOf(log)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, p := range append(parts, part{path: log}) {
		f, err := os.Open(p.path)
		if err != nil {
			continue
		}
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		var r io.Reader = f
		if p.gz {
			if r, err = gzip.NewReader(f); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := io.Copy(&b, r); err != nil {
			t.Fatal(err)
		}
		f.Close()
		files, bytes = files+1, bytes+info.Size()
	}
	return b.String(), files, bytes
}

// TestRotates: a log that grows is rotated without losing a line that is younger than the oldest part; a quiet one is
// watched by the kernel, and noticed when it is written again.
func TestRotates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := filepath.Join(dir, "0.log")
	w := newWriter(t, log)
	w.lines(t, 50)
	r := start(t, Options{
		MaxSize:  10_000,
		MaxFiles: 3,
		Interval: time.Hour,
		Reopen:   w.reopen,
		Logs:     func() []Log { return []Log{{"c", log, "n/p/c"}} },
	})
	kernel := r.watch
	for round := 1; round <= 3; round++ { // the first part is removed at the third
		// Nobody looks at it any more: only the kernel reports when it is written.
		wait.Until(t, "the kernel to watch the log", func() error {
			kernel.mu.Lock()
			defer kernel.mu.Unlock()
			if kernel.descriptors["c"] == 0 {
				return errors.New("the log is not watched")
			}
			return nil
		})
		w.lines(t, 120)
		wait.Until(t, "the log to be rotated", func() error {
			if n := w.rotations(); n < round {
				return fmt.Errorf("rotated %d times, want %d", n, round)
			}
			return nil
		})
	}
	wait.Until(t, "the older part to be compressed", func() error {
		parts, err := partsOf(log)
		if err != nil || len(parts) != 2 || !parts[0].gz || parts[1].gz {
			return fmt.Errorf("parts %+v, %v: want two, the older compressed", parts, err)
		}
		return nil
	})
	text, files, _ := content(t, log)
	lines := strings.Fields(text)
	if files != 3 || len(lines) < 240 || lines[len(lines)-1] != fmt.Sprint(w.n-1) {
		t.Fatalf("%d files, %d lines, the last %s; want 3, at least 240 and %d",
			files, len(lines), lines[len(lines)-1], w.n-1)
	}
	for i, l := range lines {
		if want := fmt.Sprint(w.n - len(lines) + i); l != want {
			t.Fatalf("line %d is %s, want %s", i, l, want)
		}
	}
}

// TestLimitComesLater: a log that has no limit at first is rotated once there is one.
func TestLimitComesLater(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := filepath.Join(dir, "0.log")
	w := newWriter(t, log)
	w.lines(t, 50)
	r := start(t, Options{
		MaxSize:  0,
		MaxFiles: 3,
		Reopen:   w.reopen,
		Logs:     func() []Log { return []Log{{"c", log, "n/p/c"}} },
	})
	wait.Until(t, "the log to be noticed", func() error {
		if len(r.changed) > 0 {
			return errors.New("it has not noticed that there is a log")
		}
		return nil
	})
	r.SetLimits(1000, 3)
	wait.Until(t, "the log to be rotated", func() error {
		if parts, err := partsOf(log); err != nil || len(parts) != 1 {
			return fmt.Errorf("parts %v, %v; want one", parts, err)
		}
		return nil
	})
}

// TestFlood: what a log takes stays bounded while it is written as fast as it can be.
func TestFlood(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := filepath.Join(dir, "0.log")
	w := newWriter(t, log)
	const size, files = 256 << 10, 4
	start(t, Options{
		MaxSize:  size,
		MaxFiles: files,
		Interval: 10 * time.Second,
		Reopen:   w.reopen,
		Logs:     func() []Log { return []Log{{"c", log, "n/p/c"}} },
	})
	var most int64
	// A log that is not bounded never gets there: all that was written is on the disk at once.
	wait.Until(t, "three rotations, and twice as much to be written as ever was on the disk", func() error {
		w.lines(t, 1000) // up to 10 MB a second
		var sum int64
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if info, err := e.Info(); err == nil {
				sum += info.Size()
			}
		}
		most = max(most, sum)
		if wrote, n := int64(w.n)*100, w.rotations(); n < 3 || most > wrote/2 {
			return fmt.Errorf("%d rotations; %d of %d bytes were on the disk at once", n, most, wrote)
		}
		return nil
	})
	wait.Until(t, "the log to keep its limits after the flood", func() error {
		_, n, bytes := content(t, log)
		if n > files || bytes > size*(files+1) {
			return fmt.Errorf("%d files of %d bytes, want at most %d of %d", n, bytes, files, size*(files+1))
		}
		return nil
	})
}

// TestRuntimeRefuses: the log keeps its name, and is rotated when the runtime does it.
func TestRuntimeRefuses(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "0.log")
	w := newWriter(t, log)
	w.refuse = true
	w.lines(t, 20)
	r := New(Options{MaxSize: 1000, MaxFiles: 3, Reopen: w.reopen})
	err := r.rotate(t.Context(), Log{"c", log, "n/p/c"})
	if err == nil || !strings.Contains(err.Error(), "n/p/c") || !strings.Contains(err.Error(), "not now") {
		t.Errorf("rotate: %v, want an error with n/p/c and not now", err)
	}
	if parts, err := partsOf(log); err != nil || len(parts) != 0 {
		t.Errorf("parts %v, %v: want the old name back", parts, err)
	}
	w.refuse = false
	if err := r.rotate(t.Context(), Log{"c", log, "n/p/c"}); err != nil {
		t.Fatal(err)
	}
	if parts, err := partsOf(log); err != nil || len(parts) != 1 || parts[0].size != 2000 {
		t.Errorf("parts %v, %v; want one of 2000 bytes", parts, err)
	}
}

// TestLeftOvers: what a killed agent left is removed, and compressed once.
func TestLeftOvers(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "0.log")
	for name, text := range map[string]string{
		"0.log": "now", "0.log.20260101-000000": "one", "0.log.20260101-000001": "two",
		"0.log.20260101-000002":        "three",
		"0.log.20260101-000000.gz.tmp": "half", "other.tmp": "kept", "00.log.20260101-000000": "kept",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := New(Options{MaxSize: 1000, MaxFiles: 3})
	if err := r.tidy(t.Context(), log); err != nil {
		t.Fatal(err)
	}
	var names []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if diff := cmp.Diff([]string{"0.log", "0.log.20260101-000001.gz", "0.log.20260101-000002", "00.log.20260101-000000",
		"other.tmp"}, names); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if text, _, _ := content(t, log); text != "twothreenow" {
		t.Errorf("content %q, want twothreenow", text)
	}
	// A link where a log should be is no log.
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "1.log")); err != nil {
		t.Fatal(err)
	}
	if size, err := sizeOf(filepath.Join(dir, "1.log")); err == nil {
		t.Errorf("sizeOf(a symbolic link) = %d, nil, want an error", size)
	}
	if err := r.compress(t.Context(), filepath.Join(dir, "1.log")); err == nil {
		t.Error("compress(a symbolic link) = nil, want an error")
	}
}

// TestTakePlace: a part that went while it was compressed does not come back, and one that was written is compressed
// again.
func TestTakePlace(t *testing.T) {
	for name, tc := range map[string]struct {
		meanwhile func(path string) error
		want      error
		left      []string
	}{
		"left alone": {func(string) error { return nil }, nil, []string{"part.gz"}},
		"removed":    {os.Remove, fs.ErrNotExist, []string{"tmp"}},
		"written": {func(path string) error {
			return os.WriteFile(path, []byte("text and more"), 0o600)
		}, errWritten, []string{"part", "tmp"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path, tmp := filepath.Join(dir, "part"), filepath.Join(dir, "tmp")
			err := errors.Join(os.WriteFile(path, []byte("text"), 0o600), os.WriteFile(tmp, nil, 0o600),
				tc.meanwhile(path))
			if err != nil {
				t.Fatal(err)
			}
			root, err := logdir.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			if err := New(Options{}).takePlace(root, "tmp", "part", 4); !errors.Is(err, tc.want) ||
				(err == nil) != (tc.want == nil) {
				t.Errorf("%v, want %v", err, tc.want)
			}
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			var left []string
			for _, e := range entries {
				left = append(left, e.Name())
			}
			if !slices.Equal(left, tc.left) {
				t.Errorf("left %v, want %v", left, tc.left)
			}
		})
	}
}

// TestRotatedWhileTidied: a part that comes while others are looked after is not removed for its size before it was
// compressed.
func TestRotatedWhileTidied(t *testing.T) {
	t.Parallel()
	r := New(Options{MaxSize: 1000, MaxFiles: 3})
	text := bytes.Repeat([]byte("the same line again and again\n"), 200)
	tries := 60
	if *long {
		tries = 600
	}
	for i := range tries {
		dir := t.TempDir()
		log := filepath.Join(dir, "0.log")
		if err := os.WriteFile(log, text, 0o640); err != nil {
			t.Fatal(err)
		}
		tidied := make(chan error, 1)
		go func() { tidied <- r.tidy(t.Context(), log) }()
		later := time.Duration(i) * 120 * time.Microsecond / time.Duration(tries)
		for began := time.Now(); time.Since(began) < later; { // a sleep is never as short
		}
		err := errors.Join(os.Rename(log, log+"."+nextStamp(nil, time.Now())), os.WriteFile(log, nil, 0o640))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(<-tidied, r.tidy(t.Context(), log)); err != nil {
			t.Fatal(err)
		}
		if parts, err := partsOf(log); err != nil || len(parts) != 1 || !parts[0].gz {
			t.Fatalf("try %d: parts %+v, %v; want one, compressed", i, parts, err)
		}
	}
}
