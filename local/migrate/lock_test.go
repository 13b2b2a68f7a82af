package migrate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLock: two commands at once would be in each other's way.
func TestLock(t *testing.T) {
	root := t.TempDir()
	if _, err := Lock(root); err == nil || !strings.Contains(err.Error(), "lock "+root) {
		t.Errorf("Lock without folder run = %v, want an error with %q", err, "lock "+root)
	}
	if err := os.Mkdir(filepath.Join(root, "run"), 0o755); err != nil {
		t.Fatal(err)
	}
	unlock, err := Lock(root)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(root); err == nil || !strings.Contains(err.Error(), "is at work") {
		t.Errorf("second Lock = %v, want an error with %q", err, "is at work")
	}
	unlock()
	again, err := Lock(root)
	if err != nil {
		t.Fatal(err)
	}
	again()
}
