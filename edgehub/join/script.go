package join

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

const (
	// shell runs scripts; it is keadm's.
	shell = "/bin/bash"
	// scriptWait is how long a script may take to stop when the join is interrupted.
	scriptWait = 10 * time.Second
)

// Script is a file that a flag of the command line names, and that runs with bash before or after a join.
type Script struct {
	// Flag is for errors, such as --pre-run.
	Flag, File string
}

// Check reports whether there is such a file; it runs nothing.
func (s Script) Check() error {
	if s.File == "" {
		return errors.New(s.Flag + ": want the file of a script")
	}
	for _, name := range []string{s.File, shell} {
		if info, err := os.Stat(name); err != nil {
			return fmt.Errorf("%s: %w", s.Flag, err)
		} else if info.IsDir() {
			return fmt.Errorf("%s: %s is a folder, want the file of a script", s.Flag, name)
		}
	}
	return nil
}

// Run runs the script and waits for its end. Its output goes to out and errs, and it has no input.
func (s Script) Run(ctx context.Context, out, errs io.Writer) error {
	cmd := exec.CommandContext(ctx, shell, s.File)
	cmd.Stdout, cmd.Stderr = out, errs
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = scriptWait
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", s.Flag, s.File, err)
	}
	return nil
}
