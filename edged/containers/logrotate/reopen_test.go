package logrotate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

// TestGoneIsOpenedAgain: a log that somebody removes, alone or with its folders, is opened again, also while the
// kernel watches it.
func TestGoneIsOpenedAgain(t *testing.T) {
	t.Parallel()
	logs := t.TempDir()
	dir := filepath.Join(logs, "pod", "c")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(dir, "0.log")
	w := newWriter(t, log)
	w.lines(t, 1)
	r := start(t, Options{
		MaxSize:  10_000,
		MaxFiles: 3,
		Interval: 3 * time.Second,
		Reopen:   w.reopen,
		Logs:     func() []Log { return []Log{{"c", log, "n/p/c"}} },
	})
	kernel := r.watch
	for i, gone := range []string{log, dir, filepath.Dir(dir)} {
		wait.Until(t, "the kernel to watch the log", func() error {
			kernel.mu.Lock()
			defer kernel.mu.Unlock()
			if kernel.descriptors["c"] == 0 {
				return errors.New("the log is not watched")
			}
			return nil
		})
		if err := os.RemoveAll(gone); err != nil {
			t.Fatal(err)
		}
		wait.Until(t, "the log to be opened again", func() error {
			if n := w.rotations(); n <= i {
				return fmt.Errorf("opened again %d times, want %d", n, i+1)
			}
			return nil
		})
		w.lines(t, 1)
		want := fmt.Sprint(w.n - 1)
		if text, _, _ := content(t, log); strings.TrimSpace(text) != want {
			t.Errorf("after %s was removed, the log is %q, want %q", gone, text, want)
		}
	}
}

// TestKilledWhileRotating: an agent was killed after it had renamed a log. The runtime still writes to the newest part,
// which stays as it is until the runtime has opened a new log, however large it is.
func TestKilledWhileRotating(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := filepath.Join(dir, "0.log")
	w := newWriter(t, log)
	w.lines(t, 400) // more than all parts may be
	part := log + ".20260102-030405"
	if err := os.Rename(log, part); err != nil {
		t.Fatal(err)
	}
	older := log + ".20260102-030404"
	if err := os.WriteFile(older, []byte("older\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	opts := Options{MaxSize: 10_000, MaxFiles: 3, Interval: time.Hour, Reopen: w.reopen}
	r := New(opts)
	if err := r.tidy(t.Context(), log); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(part); err != nil || info.Size() != 40_000 {
		t.Fatalf("the part that is written: %v, %v; want it with 40000 bytes", info, err)
	}
	if _, err := os.Stat(older + gzSuffix); err != nil {
		t.Errorf("the part before it was not compressed: %v", err)
	}
	w.lines(t, 1)
	var asked atomic.Int32
	opts.Reopen = func(ctx context.Context, id string) error {
		asked.Add(1)
		return w.reopen(ctx, id)
	}
	opts.Logs = func() []Log { return []Log{{"c", log, "n/p/c"}} }
	start(t, opts)
	wait.Until(t, "the part to be compressed once the runtime has a new log", func() error {
		if _, err := os.Stat(part + gzSuffix); err != nil {
			return err
		}
		return nil
	})
	w.lines(t, 1)
	text, files, _ := content(t, log)
	if lines := bytes.Count([]byte(text), []byte("\n")); lines != 403 || files != 3 || asked.Load() != 1 {
		t.Errorf("%d lines in %d files, opened %d times; want 403 lines in 3 files, opened once", lines, files,
			asked.Load())
	}
}

// TestMissing: a log is opened again once it has been missing for some seconds, and then at most once in an interval.
func TestMissing(t *testing.T) {
	r := New(Options{Interval: 10 * time.Second})
	t0 := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	f := &watched{Log: Log{"c", filepath.Join(t.TempDir(), "0.log"), "n/p/c"}}
	for _, step := range []struct {
		at     time.Duration
		reopen bool
	}{
		{0, false},
		{settled - 1, false},
		{settled, true},
		{settled + time.Second, false},
		{settled + 10*time.Second, true},
	} {
		now := t0.Add(step.at)
		if got := r.checkLog(f, now); got != step.reopen {
			t.Errorf("after %v: opened again = %v, want %v", step.at, got, step.reopen)
		}
		if !step.reopen && !f.due.After(now) {
			t.Errorf("after %v: due %v, want a later time", step.at, f.due.Sub(now))
		}
		if step.reopen {
			f.reopened = now
		}
	}
	if err := os.WriteFile(f.Path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r.checkLog(f, t0.Add(time.Minute)) || !f.gone.IsZero() {
		t.Errorf("a log that is there again is missing since %v, want it to be no longer missing", f.gone)
	}
}

// TestNotOpenedAgain: a runtime that opens no new log, whatever it says, is asked less and less often.
func TestNotOpenedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	r := New(Options{
		Interval: 10 * time.Second,
		Reopen:   func(context.Context, string) error { return nil },
	})
	l := Log{ID: "c", Name: "main", Path: path}
	f := &watched{Log: l}
	r.logs[l.ID] = f
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	for _, want := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
		err := r.reopen(t.Context(), l)
		if err == nil || !strings.Contains(err.Error(), "the runtime says that it has opened a new one") {
			t.Fatalf("reopen = %v, want an error: the file does not exist", err)
		}
		r.rotated(rotation{id: l.ID, reopen: true, err: err}, now)
		if f.pause != want {
			t.Errorf("pause %v, want %v", f.pause, want)
		}
		f.gone = now.Add(-time.Minute)
		if r.missing(f, now.Add(want-time.Second)) || !r.missing(f, now.Add(want)) {
			t.Errorf("not asked again exactly %v after the last time", want)
		}
		now = now.Add(want)
	}
}
