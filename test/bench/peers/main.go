// Command peers compares edgecore and cloudcore with a real kubelet and with bare CRI calls, and edgecore without a
// cloud with bare CRI calls. They take turns in one run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const help = `Compares edgecore and cloudcore with a real kubelet and with the floor: bare CRI calls that make the same requests to
the runtime. All three take turns in one run, in random order and with gaps of random length, so that other work on the
machine affects them alike. Each has its own containerd. Both agents are nodes of a cluster that the command starts
(etcd, kube-apiserver, kube-controller-manager). Pods name their node, so the figures include no scheduler. Times are
from the first API call to the event that a watching client sees. Both agents reach their server through a proxy that
counts bytes.

It needs root, Debian's containerd, and Kubernetes, which it builds once (10 minutes on 2 cores). It stops all that it
starts.

    make build && go run ./test/bench/peers                        # about 15 minutes: a first look
    go run ./test/bench/peers --mode long --json bin/bench.json    # about 45 minutes
    go run ./test/bench/peers --parts bursts --sizes 30            # one part only
    go run ./test/bench/peers --parts idle --levels 250            # 250 pods on each node
    go run ./test/bench/peers --parts static,probes,restarts       # without a cluster, and without a kubelet

Parts without a cloud, on the floor's containerd, before the cluster starts:

    static   pods from manifests, one at a time and many at once (--sizes), and how soon an agent that was killed has
             its pods again
    probes   the agent's CPU for 100 HTTP probes a second
    restarts how 30 pods come back after a power cut, while somebody asks for them ten times a second

Parts with both nodes (nothing else happens on them meanwhile):

    idle     memory, CPU, disk writes and network bytes of both agents while idle, at each number of pods in --levels:
             with 0 pods in fresh agents, with more after three bursts
    token    one pod at a time, with the token volume that pods have by default: create -> Running, delete -> gone
    plain    the same without the token
    full     the same with the token, a ConfigMap, a Secret and an emptyDir
    bursts   many pods at once (--sizes): first and last Running, all gone, CPU; the floor with 4, 8, 16 and 30 at a time

--json writes the samples to a file (package test/bench/results describes it). They replace the file's samples of the
same metrics, so the parts can be measured in separate runs. The recorded file is bench/record.json: 'make bench-page'
makes bench/index.html and the tables of docs/benchmarks.md and README from it, and 'make bench-check' compares with it.

`

// The parts, in the order in which they are measured.
const (
	partStatic   = "static"
	partProbes   = "probes"
	partRestarts = "restarts"
	partIdle     = "idle"
	partToken    = "token"
	partPlain    = "plain"
	partFull     = "full"
	partBursts   = "bursts"
)

var (
	// nodeParts are those that need the cluster.
	nodeParts = []string{partIdle, partToken, partPlain, partFull, partBursts}
	allParts  = slices.Concat([]string{partStatic, partProbes, partRestarts}, nodeParts)
)

// mode is how much is measured.
type mode struct {
	rounds, repeats int
	sizes, levels   []int
	idle            time.Duration
}

var modes = map[string]mode{
	"short": {rounds: 5, repeats: 1, sizes: []int{30}, levels: []int{0, 30}, idle: 20 * time.Second},
	"long": {rounds: 20, repeats: 3, sizes: []int{10, 20, 30}, levels: []int{0, 10, 30, 60, 110, 250},
		idle: statusPeriod},
}

// maxPods bounds levels and bursts: the network of a containerd has addresses for no more pods.
const maxPods = 250

// options say what to measure.
type options struct {
	edge, cloud, json string
	parts             map[string]bool
	mode
}

// nodes reports whether a part needs the cluster.
func (o options) nodes() bool {
	return slices.ContainsFunc(nodeParts, func(part string) bool { return o.parts[part] })
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, err := parse(flag.NewFlagSet("peers", flag.ContinueOnError), os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		stop()
		os.Exit(1)
	}
}

// parse reads the arguments.
func parse(set *flag.FlagSet, args []string) (o options, err error) {
	set.Usage = func() {
		fmt.Fprint(set.Output(), help)
		set.PrintDefaults()
	}
	set.StringVar(&o.edge, "edgecore", "bin/edgecore", "the stripped `edgecore` to measure")
	set.StringVar(&o.cloud, "cloudcore", "bin/cloudcore", "the stripped `cloudcore` to measure")
	set.StringVar(&o.json, "json", "", "the `file` of results to which the samples are written")
	parts := set.String("parts", strings.Join(allParts, ","), "what to measure")
	name := set.String("mode", "short", "how much to measure: short or long")
	rounds := set.Int("rounds", 0, "how many pods to measure one at a time (default: 5, long 20)")
	repeats := set.Int("repeats", 0, "how many bursts of each size and restarts to measure (default: 1, long 3)")
	sizes := set.String("sizes", "", "`numbers` of pods in a burst (default: 30, long 10,20,30)")
	levels := set.String("levels", "", "`numbers` of pods for the part idle (default: 0,30, long 0 to 250)")
	idle := set.Duration("idle", 0, "how long to measure idle agents (default: 20s, long 5m: the period of statuses)")
	if err := set.Parse(args); err != nil {
		return o, err
	}
	if set.NArg() > 0 {
		return o, fmt.Errorf("%q is not a flag; --help explains the flags", set.Arg(0))
	}
	var known bool
	if o.mode, known = modes[*name]; !known {
		return o, fmt.Errorf("--mode %s: the modes are %s", *name,
			strings.Join(slices.Sorted(maps.Keys(modes)), ", "))
	}
	o.parts = map[string]bool{}
	for part := range strings.SplitSeq(*parts, ",") {
		if !slices.Contains(allParts, part) {
			return o, fmt.Errorf("--parts %s: the parts are %s", part, strings.Join(allParts, ", "))
		}
		o.parts[part] = true
	}
	o.rounds, o.repeats = orDefault(*rounds, o.rounds), orDefault(*repeats, o.repeats)
	if *idle != 0 {
		o.idle = *idle
	}
	if o.rounds < 1 || o.repeats < 1 || o.idle <= 0 {
		return o, fmt.Errorf("--rounds, --repeats and --idle must be greater than 0")
	}
	if o.sizes, err = numbers("--sizes", *sizes, o.sizes, 1); err != nil {
		return o, err
	}
	if o.levels, err = numbers("--levels", *levels, o.levels, 0); err != nil {
		return o, err
	}
	for _, path := range []*string{&o.edge, &o.cloud} {
		if *path, err = filepath.Abs(*path); err != nil {
			return o, err
		}
		if _, err := os.Stat(*path); err != nil {
			return o, fmt.Errorf("%w; make build makes it", err)
		}
	}
	return o, nil
}

func orDefault(n, otherwise int) int {
	if n != 0 {
		return n
	}
	return otherwise
}

// numbers reads a list of numbers of pods, and returns it in ascending order.
func numbers(name, text string, otherwise []int, least int) ([]int, error) {
	if text == "" {
		return otherwise, nil
	}
	var list []int
	for field := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < least || n > maxPods {
			return nil, fmt.Errorf("%s: %q is not a number of pods from %d to %d", name, field, least, maxPods)
		}
		list = append(list, n)
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}
