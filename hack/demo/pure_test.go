package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/wait"
)

func TestShown(t *testing.T) {
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(wd, ".demo", "a.yaml"): ".demo/a.yaml",
		"/etc/passwd":                        "/etc/passwd",
		filepath.Join(wd, "a b"):             "'a b'",
		"/it's":                              `'/it'\''s'`,
		"/a;b":                               "'/a;b'",
	} {
		if got := shown(path); got != want {
			t.Errorf("shown(%q) = %s, want %s", path, got, want)
		}
	}
}

func TestShShowsWhatItRuns(t *testing.T) {
	var out bytes.Buffer
	n := &narrator{out: &out, env: []string{"GREETING=hello"}}
	text, err := n.sh(t.Context(), "echo $GREETING; echo oops >&2; exit 3")
	if want := "hello\noops\n"; text != want || out.String() != "\n$ echo $GREETING; echo oops >&2; exit 3\n"+want {
		t.Errorf("sh = %q, shown as %q; want %q and the command before it", text, out.String(), want)
	}
	if err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("sh = %v, want an error with %q", err, "exit status 3")
	}
}

// TestShEndsWithItsChildren: a command that is to end does so with all that it started. A child holds its output open
// for hours.
func TestShEndsWithItsChildren(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	started := filepath.Join(t.TempDir(), "started")
	ended := make(chan error, 1)
	go func() {
		n := &narrator{out: &bytes.Buffer{}}
		_, err := n.sh(ctx, "sleep 10000 & touch "+started+"; sleep 10000")
		ended <- err
	}()
	wait.Until(t, "the command to start", func() error {
		_, err := os.Stat(started)
		return err
	})
	cancel()
	if err := wait.Receive(t, "the command to end", ended); err == nil {
		t.Error("sh returned no error, want one")
	}
}

// TestClearLeavesOthersAlone: a folder that is no demo's is not removed.
func TestClearLeavesOthersAlone(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "precious")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := clear(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "is not a demo's") {
		t.Errorf("clear = %v, want an error with %q", err, "is not a demo's")
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
	if err := clear(t.Context(), filepath.Join(dir, "none")); err != nil {
		t.Error(err)
	}
}
