// Command soak starts and deletes thousands of pods on one device, kills processes of pods and the agent itself at
// random moments meanwhile, and compares what the agent holds at the end with what it held after the first 200: memory,
// goroutines, file descriptors, mounts, cgroups, the store, and what is left in the runtime and on the disk. What grows
// with the number of pods that have been is a leak, and the exit status is 1.
//
// The agent is killed in the first half only, so that the one of the end has lived for half of all pods; the first
// figures are of an agent that is younger.
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
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	flag.StringVar(&o.binary, "binary", "bin/edgecore", "the stripped `edgecore` to look at")
	flag.IntVar(&o.pods, "count", 2000, "how many pods are started and deleted")
	flag.IntVar(&o.first, "first", 200, "after how many figures are taken, first and again and again")
	flag.IntVar(&o.wave, "wave", 20, "how many there are at a time")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()),
		"what chance begins with; the same seed makes the same choices")
	flag.DurationVar(&o.settle, "settle", 30*time.Second, "how long the agent is left alone before figures are taken")
	flag.Parse()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	if o.binary, err = filepath.Abs(o.binary); err != nil {
		return err
	}
	o.say = func(format string, args ...any) { fmt.Fprintf(os.Stderr, "==> "+format+"\n", args...) }
	r, err := soak(ctx, o)
	if r != nil && r.end != nil { // also of a soak that was ended before its time
		fmt.Print(r.table(o))
		err = errors.Join(err, r.verdict())
	}
	return err
}
