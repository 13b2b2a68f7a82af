package logrotate

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/edgecore-io/edgecore/edged/containers/logdir"
)

// TestHostile: what a pod with a writable /var/log puts in the place of logs is neither rotated, compressed nor
// removed, and nothing waits for it.
func TestHostile(t *testing.T) {
	base := t.TempDir()
	pod, elsewhere := filepath.Join(base, "ns_p_1"), filepath.Join(base, "elsewhere")
	const part = "0.log.20260101-000000"
	for _, dir := range []string{pod, elsewhere, filepath.Join(pod, "pipe")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"0.log", part, "0.log.20250101-000000", "0.log.20240101-000000.gz.tmp"} {
		if err := os.WriteFile(filepath.Join(elsewhere, name), []byte("text"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before, err := os.ReadDir(elsewhere)
	if err != nil {
		t.Fatal(err)
	}
	linked := filepath.Join(pod, "linked")
	pipe := filepath.Join(pod, "pipe", part)
	if err := errors.Join(os.Symlink(elsewhere, linked), unix.Mkfifo(pipe, 0o666)); err != nil {
		t.Fatal(err)
	}
	r := New(Options{MaxSize: 1, MaxFiles: 2, Reopen: func(context.Context, string) error { return nil }})
	for what, do := range map[string]func() error{
		"compress a pipe": func() error { return r.compress(t.Context(), pipe) },
		"rotate through a link": func() error {
			return r.rotate(t.Context(), Log{Path: filepath.Join(linked, "0.log")})
		},
		"tidy through a link":          func() error { return r.tidy(t.Context(), filepath.Join(linked, "0.log")) },
		"compress through a link":      func() error { return r.compress(t.Context(), filepath.Join(linked, part)) },
		"ask for a size over a link":   func() error { _, err := sizeOf(filepath.Join(linked, "0.log")); return err },
		"look at parts through a link": func() error { _, err := partsOf(filepath.Join(linked, "0.log")); return err },
	} {
		if err := do(); !errors.Is(err, logdir.ErrRefused) {
			t.Errorf("%s: %v, want ErrRefused", what, err)
		}
	}
	after, err := os.ReadDir(elsewhere)
	if err != nil || len(after) != len(before) {
		t.Errorf("%d files elsewhere, %v; want the %d of before", len(after), err, len(before))
	}
}
