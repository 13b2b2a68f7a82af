// Command demo is `make demo`: a Kubernetes cluster, cloudcore and an edge device behind NAT on one machine. It shows
// how kubectl reaches the device's pods, and what happens to them when the link is cut, the agent is killed and every
// container is lost. It prints each step with its commands and their output, and checks each result. It removes
// everything that it created: at its end, on a failure, on Ctrl-C, and with `make demo-stop` also after it was killed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

// exitInterrupted is the exit status after Ctrl-C.
const exitInterrupted = 130

func main() {
	// A closed terminal or pipe also stops it in order.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP,
		syscall.SIGPIPE)
	err := run(ctx, os.Args[1:])
	stop()
	switch {
	case errors.Is(err, errInterrupted):
		os.Exit(exitInterrupted)
	case err != nil:
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	dir, edgecore, cloudcore string
	keep                     bool
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("want run or stop")
	}
	var o options
	flags := flag.NewFlagSet("demo "+args[0], flag.ContinueOnError)
	flags.StringVar(&o.dir, "dir", ".demo", "the `folder` for all files; it is removed at the end")
	flags.StringVar(&o.edgecore, "edgecore", "bin/edgecore", "the edgecore to run, a `file`")
	flags.StringVar(&o.cloudcore, "cloudcore", "bin/cloudcore", "the cloudcore to run, a `file`")
	flags.BoolVar(&o.keep, "keep", false, "let all run after the story, until Ctrl-C or `demo stop`")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("running containers needs root: sudo make demo")
	}
	for _, path := range []*string{&o.dir, &o.edgecore, &o.cloudcore} {
		var err error
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	switch args[0] {
	case "run":
		return play(ctx, o)
	case "stop":
		return halt(ctx, o.dir)
	}
	return fmt.Errorf("%q: want run or stop", args[0])
}
