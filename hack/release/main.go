// Command release makes what is installed on devices: static programs for each architecture with the list of their
// parts, and Debian packages. The same commit, built anywhere with the same tools, gives the same bytes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

const usage = `usage: release [flags] cross|deb|reproduce [ARCH...]

  cross      static programs, OUT/edgecore-ARCH, and their parts, OUT/edgecore-ARCH.cdx.json
  deb        cross, and packages of them, OUT/edgecore_VERSION_ARCH.deb, checked by lintian
  reproduce  deb for the last commit in two fresh folders, and a comparison

ARCH is amd64, arm64 or armv7 (or armhf, as Debian calls it); without one it is all of them.
`

// release is one run.
type release struct {
	// version and commit are what the program says of itself; made is when the commit was.
	version, commit string
	made            time.Time
	tags            string
	// source is the folder of the module, out where the results go, work a folder that goes at the end.
	source, out, work string
	// lintian: packages are checked.
	lintian bool
}

func main() {
	r := &release{}
	flag.Usage = func() { fmt.Fprint(os.Stderr, usage); flag.PrintDefaults() }
	flag.StringVar(&r.version, "version", "v0.0.0-dev", "the `version`")
	flag.StringVar(&r.commit, "commit", "unknown", "the `commit`")
	flag.StringVar(&r.tags, "tags", "", "the build `tags`")
	flag.StringVar(&r.source, "source", ".", "the `folder` of the module")
	flag.StringVar(&r.out, "out", "bin", "the `folder` for the results")
	flag.BoolVar(&r.lintian, "lintian", true, "check packages with lintian")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := r.run(ctx, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		stop()
		os.Exit(1)
	}
}

// run does what the command line says.
func (r *release) run(ctx context.Context, args []string) (err error) {
	if len(args) == 0 {
		return errors.New("want a command: cross, deb or reproduce")
	}
	targets, err := targetsOf(args[1:])
	if err != nil {
		return err
	}
	if r.work, err = os.MkdirTemp("", "edgecore-release-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.work)) }()
	if r.made, err = commitTime(ctx, r.source); err != nil {
		return err
	}
	switch args[0] {
	case "cross":
		return r.cross(ctx, targets)
	case "deb":
		if err := r.cross(ctx, targets); err != nil {
			return err
		}
		return r.packages(ctx, targets)
	case "reproduce":
		return r.reproduce(ctx, targets)
	}
	return fmt.Errorf("unknown command %q: want cross, deb or reproduce", args[0])
}

// commitTime returns the time of the last commit, the only time in a release's sources.
func commitTime(ctx context.Context, source string) (time.Time, error) {
	out, err := output(ctx, source, nil, "git", "log", "-1", "--format=%cI")
	if err != nil {
		return time.Time{}, fmt.Errorf("time of the commit: %w", err)
	}
	at, err := time.Parse(time.RFC3339, strings.TrimSpace(out))
	return at.UTC(), err
}
