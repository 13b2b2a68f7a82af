package migrate

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestProgramOf(t *testing.T) {
	for unit, want := range map[string]string{
		"[Service]\nExecStart=/usr/local/bin/edgecore\n":                 "/usr/local/bin/edgecore",
		"[Service]\nExecStart=-/opt/e --config /c.yaml\n":                "/opt/e",
		"[Service]\nExecStart=@/opt/e edgecore\nExecStart=/opt/other\n":  "/opt/e",
		"[Service]\nExecStart=\n ExecStart=/opt/e\n":                     "/opt/e",
		"[Service]\nExecStartPre=/bin/true\nExecStart=edgecore --fast\n": "",
		"": "",
	} {
		if got := programOf(unit); got != want {
			t.Errorf("%q starts %q, want %q", unit, got, want)
		}
	}
}

// TestHolder finds the process that has a file open.
func TestHolder(t *testing.T) {
	name := filepath.Join(t.TempDir(), "edgecore.db")
	f, err := os.Create(name)
	must(t, err)
	defer f.Close()
	if who := holder(name); who != "" {
		t.Fatalf("%s has it open, and that is this process; want \"\"", who)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, "sleep", "60")
	cmd.ExtraFiles = []*os.File{f}
	must(t, cmd.Start())
	// The name of a program changes a moment after its start.
	want := fmt.Sprintf("sleep (pid %d)", cmd.Process.Pid)
	wait.Until(t, "the holder of the file", func() error {
		if who := holder(name); who != want {
			return fmt.Errorf("%q has it open, want %q", who, want)
		}
		return nil
	})
	short, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	if err := waitUnused(short, name); err == nil || !strings.Contains(err.Error(), "another agent runs here") {
		t.Errorf("waited, and got %v; want an error with \"another agent runs here\"", err)
	}
	cancel()
	if err := cmd.Wait(); err == nil {
		t.Error("Wait of sleep = nil, want the error of a killed process")
	}
	must(t, waitUnused(t.Context(), name))
	must(t, waitUnused(t.Context(), name+".none"))
}

func TestJournal(t *testing.T) {
	j := journal{filepath.Join(t.TempDir(), "adopt", "state.json")}
	if s, err := j.load(); s != nil || err != nil {
		t.Errorf("none is %+v, %v; want nil, no error", s, err)
	}
	want := &state{
		Phase:      settled,
		At:         time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC),
		Config:     "/c",
		Before:     []byte("x"),
		BeforeMode: 0o640,
		Links:      map[string]string{"a": "b"},
	}
	must(t, j.save(want))
	got, err := j.load()
	must(t, err)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("state read back (-want +got):\n%s", diff)
	}
	for text, says := range map[string]string{
		"{":                               "state.json",
		`{"version":1,"phase":"resting"}`: "resting",
		`{"version":2,"phase":"adopted"}`: "version 2",
	} {
		must(t, os.WriteFile(j.path, []byte(text), 0o600))
		if s, err := j.load(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %+v, %v; want an error with %q", text, s, err, says)
		}
	}
	must(t, j.remove())
	must(t, j.remove())
	if _, err := os.Stat(filepath.Dir(j.path)); err == nil {
		t.Errorf("%s exists after remove, want it removed", filepath.Dir(j.path))
	}
}
