// Command bench measures an edgecore beside the floor: a bare CRI client that makes the same pods on the same
// containerd in the same run, at the same parallelism. It prints a table of ratios; times alone mean little on a
// machine that others use, too.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/edgecore-io/edgecore/test/bench/floor"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/images"
)

const (
	burst    = 30
	patience = 3 * time.Minute
)

// script ends at once when it is told to.
var script = []string{"sh", "-c", "trap 'exit 0' TERM; sleep 1000000 & wait"}

// The parts, in the order in which they are measured.
const (
	partFull     = "full"
	partProbes   = "probes"
	partStatic   = "static"
	partRestarts = "restarts"
)

var parts = []string{partFull, partProbes, partStatic, partRestarts}

const help = `Measures an edgecore beside bare CRI calls, on a containerd of its own. It needs root and Debian's containerd, and
ends what it starts. Build the agent first, as packages have it:

    make build && go run ./test/bench --binary bin/edgecore

The parts, one of which --only measures alone:

    full     pods with a token, a configmap, a secret and an emptyDir, as a cloud sends them: the cloud's end of
             the link is in this program, so that neither an API server nor a network is measured; and bursts of 30
             of them (about 4 minutes)
    probes   what 100 HTTP probes a second cost the agent (about 2 minutes)
    static   pods from manifests, bursts of 30, and what an idle agent uses (about 8 minutes)
    restarts how 30 pods come back after a power cut with no cloud, while somebody asks for them ten times a
             second (about 5 minutes)

Ratios are worth something on a machine that does nothing else: --only full --pods 5 is a first look.

`

// options say what to measure.
type options struct {
	binary string
	only   string
	idle   time.Duration
	// pods is how many are made one after another.
	pods int
	// cuts is how often the power is cut.
	cuts int
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var opts options
	flag.StringVar(&opts.binary, "binary", "bin/edgecore", "the stripped `edgecore` to measure")
	flag.StringVar(&opts.only, "only", "", "measure only this `part`: "+strings.Join(parts, ", "))
	flag.DurationVar(&opts.idle, "idle", time.Minute, "how long to look at an idle agent")
	flag.IntVar(&opts.pods, "pods", 20, "how many pods, one after another, a median is of")
	flag.IntVar(&opts.cuts, "cuts", 5, "how many power `cuts` a median is of")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), help)
		flag.PrintDefaults()
	}
	flag.Parse()
	err := opts.check(flag.Args())
	if err == nil {
		err = run(ctx, opts)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

func (o options) check(args []string) error {
	switch {
	case len(args) > 0:
		return fmt.Errorf("%q is no flag; --help tells what can be measured", args[0])
	case o.only != "" && !slices.Contains(parts, o.only):
		return fmt.Errorf("--only %s: the parts are %s", o.only, strings.Join(parts, ", "))
	case o.pods < 1:
		return fmt.Errorf("--pods %d: a median is of one pod at least", o.pods)
	case o.cuts < 1:
		return fmt.Errorf("--cuts %d: a median is of one power cut at least", o.cuts)
	case o.idle <= 0:
		return fmt.Errorf("--idle %v: it takes some time to see what an idle agent uses", o.idle)
	}
	return nil
}

// bench is one run.
type bench struct {
	options
	dir   string
	ctrd  *containerd.Instance
	agent *agent.Agent // of the static pods
	floor *floor.Client
	rows  []string
}

func run(ctx context.Context, opts options) (err error) {
	if opts.binary, err = filepath.Abs(opts.binary); err != nil {
		return err
	}
	info, err := os.Stat(opts.binary)
	if err != nil {
		return fmt.Errorf("%w; make build makes one", err)
	}
	b := &bench{options: opts}
	b.row("binary, stripped", fmt.Sprintf("%.1f MB", float64(info.Size())/1e6), "", "", "<= 34 MB")
	if b.dir, err = os.MkdirTemp("", "edgecore-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	say("starting a containerd")
	if b.ctrd, err = containerd.Start(ctx, containerd.Options{}); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, agent.Unmount(b.dir), b.ctrd.Stop(context.WithoutCancel(ctx)))
	}()
	if err := b.ctrd.LoadImages(ctx); err != nil {
		return err
	}
	client, err := b.ctrd.Dial()
	if err != nil {
		return err
	}
	defer client.Close()
	b.floor = &floor.Client{
		CRI:          client,
		CgroupParent: b.ctrd.CgroupRoot() + "/floor",
		LogDir:       filepath.Join(b.dir, "floor"),
		Image:        images.Demo,
		Command:      script,
	}
	for _, part := range []struct {
		name    string
		measure func(context.Context) error
	}{{partFull, b.full}, {partProbes, b.probes}, {partStatic, b.static}, {partRestarts, b.restarts}} {
		if b.only != "" && b.only != part.name {
			continue
		}
		if err := part.measure(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	fmt.Printf("\n| what | edgecore | floor | ratio | budget |\n|---|---|---|---|---|\n%s\n",
		strings.Join(b.rows, "\n"))
	return nil
}
