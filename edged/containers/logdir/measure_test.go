package logdir

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

// TestMeasure: the files of a container's log folder count, and nothing to which a link leads.
func TestMeasure(t *testing.T) {
	logs := t.TempDir()
	data := make([]byte, 64<<10)
	err := errors.Join(os.MkdirAll(filepath.Join(logs, "pod", "c"), 0o755),
		os.WriteFile(filepath.Join(logs, "pod", "c", "0.log"), data, 0o600),
		os.Symlink("c", filepath.Join(logs, "pod", "link")), os.Symlink("pod", filepath.Join(logs, "linked")),
		os.Symlink("/", filepath.Join(logs, "pod", "c", "root")))
	if err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]bool{"pod/c": true, "pod/link": false, "linked/c": false, "pod/none": false,
		"none/c": false} {
		size, err := Measure(t.Context(), filepath.Join(logs, dir))
		if got := size.Bytes >= int64(len(data)) && size.Inodes == 3; err != nil || got != want ||
			!want && size.Inodes > 0 {
			t.Errorf("Measure(%s) = %+v, %v; want its two files and the folder counted: %v", dir, size, err, want)
		}
	}
}
