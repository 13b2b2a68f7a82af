package readdir

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestQuiet(t *testing.T) {
	dir := t.TempDir()
	want := []string{"a", "b", "c"}
	for _, name := range []string{"c", "a", "b"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Older than the last change: the next usual look would write a new one.
	before := time.Unix(1_000_000_000, 0)
	if err := os.Chtimes(dir, before, time.Time{}); err != nil {
		t.Fatal(err)
	}
	entries, err := Quiet(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	var stat syscall.Stat_t
	if err := syscall.Stat(dir, &stat); err != nil {
		t.Fatal(err)
	}
	if at := time.Unix(stat.Atim.Unix()); !at.Equal(before) {
		t.Errorf("access time of the folder = %v, want %v as before", at, before)
	}
	if _, err := Quiet(filepath.Join(dir, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Quiet of a missing folder = %v, want %v", err, os.ErrNotExist)
	}
	if _, err := Quiet(filepath.Join(dir, "a")); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("Quiet of a file = %v, want %v", err, syscall.ENOTDIR)
	}
}
