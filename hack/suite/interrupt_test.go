package main

import (
	"context"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/edgecore-io/edgecore/test/testenv/daemon"
)

// TestEndPrograms: of an interrupted run the processes of its programs end, and no others.
func TestEndPrograms(t *testing.T) {
	start := func(dir string) *daemon.Process {
		sleep, err := exec.LookPath("sleep")
		if err != nil {
			t.Fatal(err)
		}
		program := filepath.Join(dir, "edgecore")
		if out, err := exec.CommandContext(t.Context(), "cp", sleep, program).CombinedOutput(); err != nil {
			t.Fatalf("cp: %v, want no error\n%s", err, out)
		}
		p, err := daemon.Start(filepath.Join(dir, "log"), nil, program, "1000")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.End(context.WithoutCancel(t.Context()), syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		})
		return p
	}
	dir := t.TempDir()
	ours, others := start(dir), start(t.TempDir())
	if err := endPrograms(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if ours.Alive() {
		t.Error("a process of the run's program is alive, want it killed")
	}
	if !others.Alive() {
		t.Error("a process of another program has ended, want it alive")
	}
}
