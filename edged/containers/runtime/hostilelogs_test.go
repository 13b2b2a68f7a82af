package runtime

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHostileLogs: neither the tail of a log nor its removal goes through a link, and none waits for a pipe.
func TestHostileLogs(t *testing.T) {
	base := t.TempDir()
	pod, elsewhere := filepath.Join(base, "ns_p_1"), filepath.Join(base, "elsewhere")
	const text = "2026-01-01T00:00:00Z stderr F secret\n"
	err := errors.Join(os.Mkdir(pod, 0o755), os.Mkdir(elsewhere, 0o755),
		os.WriteFile(filepath.Join(elsewhere, "0.log"), []byte(text), 0o600),
		os.Symlink(elsewhere, filepath.Join(pod, "linked")), os.Mkdir(filepath.Join(pod, "c"), 0o755),
		os.Symlink(filepath.Join(elsewhere, "0.log"), filepath.Join(pod, "c", "0.log")),
		unix.Mkfifo(filepath.Join(pod, "c", "1.log"), 0o666))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"linked/0.log", "c/0.log", "c/1.log"} {
		if got, err := logTail(filepath.Join(pod, path)); got != "" || err == nil {
			t.Errorf("logTail(%s) = %q, %v; want \"\" and an error", path, got, err)
		}
	}
	removeLogs(filepath.Join(pod, "linked", "0.log"))
	removeLogs(filepath.Join(pod, "c", "0.log")) // the link itself goes
	if _, err := os.Stat(filepath.Join(elsewhere, "0.log")); err != nil {
		t.Errorf("%v, want the file that links lead to left alone", err)
	}
	if left, err := os.ReadDir(filepath.Join(pod, "c")); err != nil || len(left) != 1 {
		t.Errorf("%d files left, %v; want 1: the log of the other attempt", len(left), err)
	}
}
