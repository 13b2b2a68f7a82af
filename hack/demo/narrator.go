package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// narrator tells the story, and runs the commands that are part of it.
type narrator struct {
	out     io.Writer
	began   time.Time
	chapter int
	// env is added to the environment of the commands.
	env []string
}

// title begins a chapter.
func (n *narrator) title(text string) {
	n.chapter++
	fmt.Fprintf(n.out, "\n==> %d. %s  (%.0f s)\n", n.chapter, text, time.Since(n.began).Seconds())
}

// say prints a sentence.
func (n *narrator) say(format string, args ...any) {
	fmt.Fprintf(n.out, "\n"+format+"\n", args...)
}

// show prints a command as a user types it.
func (n *narrator) show(command string) { fmt.Fprintf(n.out, "\n$ %s\n", command) }

// sh shows a command, runs it in a shell as it is shown, and shows what it prints, which it returns too.
func (n *narrator) sh(ctx context.Context, command string) (string, error) {
	n.show(command)
	out, err := n.quiet(ctx, command)
	fmt.Fprint(n.out, out)
	return out, err
}

// quiet runs a command and shows nothing.
func (n *narrator) quiet(ctx context.Context, command string) (string, error) {
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Env = append(os.Environ(), n.env...)
	// Ctrl-C on the terminal is for this program, which then ends the command with all that it has started.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", command, err, strings.TrimSpace(out.String()))
	}
	return out.String(), nil
}

// shown returns a path as displayed and valid in a shell: short if it is below the working folder.
func shown(path string) string {
	if wd, err := os.Getwd(); err == nil {
		if rel, err := filepath.Rel(wd, path); err == nil && filepath.IsLocal(rel) {
			path = rel
		}
	}
	return quote(path)
}

// quote quotes a word for a shell.
func quote(word string) string {
	if strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:@%+=,") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// seconds formats a duration for people.
func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// kilobytes formats a size for people.
func kilobytes(n int64) string { return fmt.Sprintf("%.1f kB", float64(n)/1000) }
