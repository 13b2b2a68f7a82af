package vm

import (
	"os"
	"testing"
)

// What a process left that ended without cleaning up is removed by the next; what is in use stays.
func TestFoldersOfTheDeadAreSwept(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	used, owner, err := newFolder()
	if err != nil {
		t.Fatal(err)
	}
	left, dead, err := newFolder()
	if err != nil {
		t.Fatal(err)
	}
	if err := dead.Close(); err != nil { // as the kernel does
		t.Fatal(err)
	}
	_, another, err := newFolder()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(used); err != nil {
		t.Errorf("Stat of a folder in use: %v, want it to exist", err)
	}
	if _, err := os.Stat(left); err == nil {
		t.Errorf("%s of a process that has ended exists, want it removed", left)
	}
	for _, f := range []*os.File{owner, another} {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}
