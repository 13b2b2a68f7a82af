package pinned

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// progressInterval is the time between two reports of a build.
const progressInterval = 15 * time.Second

// Go returns a go command in the module of a program, without the flags of the caller's own build (-race, -tags, -mod).
func Go(ctx context.Context, module string, cgo bool, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = module
	enabled := "CGO_ENABLED=0"
	if cgo {
		enabled = "CGO_ENABLED=1"
	}
	cmd.Env = append(os.Environ(), enabled, "GOFLAGS=-buildvcs=false", "GOWORK=off", "GOOS=", "GOARCH=")
	return cmd
}

// PackagesToBuild counts the packages of a target and its dependencies that are not in Go's build cache.
func PackagesToBuild(ctx context.Context, module string, cgo bool, tags, target string) (int, error) {
	out, err := Go(ctx, module, cgo, "list", "-trimpath", "-tags="+tags, "-deps", "-f",
		"{{if .Stale}}{{.ImportPath}}{{end}}", target).Output()
	if err != nil {
		return 0, fmt.Errorf("list the packages: %w", explain(err))
	}
	return len(strings.Fields(string(out))), nil
}

// explain adds the output of a command to its error.
func explain(err error) error {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return err
}

// Progress receives the output of "go build -v", one line for each package, and periodically reports how far the build
// is. A line that names no package is part of an error message.
type Progress struct {
	to          io.Writer
	total, done int
	start, told time.Time
	rest        string
	errors      []string
}

// NewProgress returns the progress of a build that starts now and has the given number of packages.
func NewProgress(to io.Writer, total int) *Progress {
	return &Progress{to: to, total: total, start: time.Now()}
}

// Write receives a part of the output.
func (p *Progress) Write(data []byte) (int, error) {
	lines := strings.Split(p.rest+string(data), "\n")
	p.rest = lines[len(lines)-1]
	for _, line := range lines[:len(lines)-1] {
		switch {
		case strings.HasPrefix(line, "go: downloading "):
		case strings.ContainsAny(line, " \t:"):
			p.errors = append(p.errors, line)
		default:
			p.done++
		}
	}
	if now := time.Now(); now.Sub(p.told) >= progressInterval {
		p.told = now
		_, _ = fmt.Fprintf(p.to, "  %d of %d packages, %v\n", p.done, max(p.done, p.total), p.Took())
	}
	return len(data), nil
}

// Errors returns the errors that the build has reported.
func (p *Progress) Errors() string { return strings.Join(p.errors, "\n") }

// Took returns how long the build has taken so far, in whole seconds.
func (p *Progress) Took() time.Duration { return time.Since(p.start).Round(time.Second) }
