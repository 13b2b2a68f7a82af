package process

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestBusy(t *testing.T) {
	for what, c := range map[string]struct {
		stat string
		want time.Duration // of an error 0
	}{
		"without idle and iowait": {"cpu  1 2 3 1000 1000 4 5 90 0 0\ncpu0 7 7 7 7 7 7 7\n", 150 * time.Millisecond},
		"too short":               {"cpu 1 2 3\n", 0},
		"no number":               {"cpu 1 2 x 4 5 6 7\n", 0},
		"another line":            {"intr 1 2 3 4 5 6 7 8\n", 0},
	} {
		got, err := busy(c.stat)
		if got != c.want || (err != nil) != (c.want == 0) {
			t.Errorf("%s: busy(%q) = %v, %v, want %v", what, c.stat, got, err, c.want)
		}
	}
}

// TestMemory: of this process all is known, and what is shared counts once at most.
func TestMemory(t *testing.T) {
	rss, anon, err := Memory(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	pss, err := PSS(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if anon <= 0 || rss < anon || pss <= 0 {
		t.Errorf("RSS %d, anonymous %d, PSS %d; want numbers, and no more anonymous than RSS", rss, anon, pss)
	}
}

// TestUncache: a file that was just written is read from the disk.
func TestUncache(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cached := func() bool {
		n, err := unix.Preadv2(int(f.Fd()), [][]byte{make([]byte, 1)}, 0, unix.RWF_NOWAIT)
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
		return n == 1
	}
	if !cached() {
		t.Fatal("a file that was just written is not cached, want it to be")
	}
	if err := Uncache(path); err != nil {
		t.Fatal(err)
	}
	if cached() {
		t.Error("the file is cached after Uncache, want it not to be")
	}
	if err := Uncache(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Uncache of a file that does not exist: %v, want os.ErrNotExist", err)
	}
}

func TestPeak(t *testing.T) {
	if err := ResetPeak(os.Getpid()); err != nil {
		t.Fatal(err)
	}
	peak, err := Peak(os.Getpid())
	if err != nil || peak <= 0 {
		t.Errorf("Peak = %d, %v, want a number", peak, err)
	}
}
