// Command link measures the link. It runs cloudcore and a real kube-apiserver with many simulated nodes, or with one
// real edgecore. The edgecore has real pods and either a cable that counts bytes, or a network of its own, where it is
// reached directly and through a tunnel. The command prints a table of the figures, their limits and their floors; a
// floor is measured in the same run as its figure.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/edgecore-io/edgecore/test/bench/results"
)

// options are the flags.
type options struct {
	edge, cloud string
	nodes       []int
	replicas    int
	parts       map[string]bool
	idle        time.Duration
	rest        time.Duration
	outage      time.Duration
	profiles    string
	json        string
	keep        *results.Recorder
	tunnel      []string
}

func main() {
	if isRelay(os.Args) {
		fmt.Fprintln(os.Stderr, "relay:", serveRelay(os.Args))
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, err := parse()
	if err == nil {
		err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

func parse() (options, error) {
	var o options
	flag.StringVar(&o.edge, "edgecore", "bin/edgecore", "the stripped `edgecore` to measure")
	flag.StringVar(&o.cloud, "cloudcore", "bin/cloudcore", "the stripped `cloudcore` to measure")
	nodes := flag.String("nodes", "1000", "how many simulated nodes there are; 1000,5000 is a run with each")
	flag.IntVar(&o.replicas, "replicas", 1, "how many cloudcores the simulated nodes are spread over")
	parts := flag.String("parts", "register,memory,updates,storm,restart,bytes,burst,devices,tunnel",
		"what to measure")
	flag.DurationVar(&o.idle, "idle", 5*time.Minute,
		"how long to count the bytes of an idle node: statuses are reported every 5 minutes")
	flag.DurationVar(&o.rest, "rest", time.Minute, "how long a fleet at rest is looked at")
	flag.DurationVar(&o.outage, "outage", time.Minute,
		"how long the cable is cut before the bytes of a reconnect are counted")
	flag.StringVar(&o.profiles, "profiles", "",
		"a `folder` for profiles of cloudcore, of edgecore in bursts, and of all in registrations")
	flag.StringVar(&o.json, "json", "", "a `file` of results (test/bench/results) that gets the figures of fleets")
	tunnel := flag.String("tunnel", "firstbyte,bulk,memory,link,slowlink,slow", "what to measure of the part tunnel")
	flag.Usage = usage
	flag.Parse()
	o.tunnel = strings.Split(*tunnel, ",")
	for text := range strings.SplitSeq(*nodes, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return o, fmt.Errorf("--nodes: %q is not a number of nodes", text)
		}
		o.nodes = append(o.nodes, n)
	}
	if o.replicas < 1 {
		return o, fmt.Errorf("--replicas %d: must be at least 1", o.replicas)
	}
	o.parts = map[string]bool{}
	for name := range strings.SplitSeq(*parts, ",") {
		o.parts[name] = true
	}
	for _, path := range []*string{&o.edge, &o.cloud} {
		var err error
		if *path, err = filepath.Abs(*path); err != nil {
			return o, err
		}
	}
	return o, nil
}

// simulated reports whether a part needs simulated nodes, and withPods whether one needs pods on them.
func (o options) simulated() bool {
	return o.withPods() || o.parts["register"] || o.parts["storm"] || o.parts["restart"]
}
func (o options) withPods() bool { return o.parts["memory"] || o.parts["updates"] }

func usage() {
	fmt.Fprint(flag.CommandLine.Output(), `Measures the link and tunnels: cloudcore with a real kube-apiserver, and simulated or real nodes.

Parts (--parts):
  register, memory, updates, storm, restart
                           with --nodes simulated nodes: first registration (part of each of these), with profiles of
                           all programs if there is a folder for them; memory at rest; latency of updates; all
                           reconnect at once; the same after all cloudcores were killed
  bytes, burst, devices
                           with one edgecore and its containerd at the end of a counted cable
  tunnel                   with one edgecore in a network of its own: the requests that kube-apiserver makes reach its
                           kubelet API directly and through a tunnel, in turns
    firstbyte   kubectl logs over a new connection, until its first byte; with an open tunnel, and with a new one
    bulk        exec cat of 100 MiB: bytes a second, and the processor time of all programs involved; also with small
                relays in the tunnel's place, as a floor
    memory      memory of cloudcore for each open stream
    link        how long messages of the link take while a stream runs, and while unrelated processes keep the machine
                as busy
    slowlink    the same over 100 Mbit/s with a round trip of 50 ms; the stream takes all bandwidth
    slow        exec cat over 100 Mbit/s with a round trip of 50 ms, without and with losses of 1 %

On a busy machine compare the ratios, not the times. Everything is removed at the end.

Flags:
`)
	flag.PrintDefaults()
}

func run(ctx context.Context, o options) (err error) {
	o.keep, err = results.NewRecorder(ctx, o.json, map[string]string{"cloudcore": o.cloud, "edgecore": o.edge})
	if err != nil {
		return err
	}
	var t table
	defer t.print()
	if o.simulated() {
		for _, n := range o.nodes {
			if err := measureLoad(ctx, &t, o, n); err != nil {
				return fmt.Errorf("load of %d edges: %w", n, err)
			}
		}
	}
	if o.parts["bytes"] || o.parts["burst"] || o.parts["devices"] {
		if err := measureEdge(ctx, &t, o); err != nil {
			return err
		}
	}
	if o.parts["tunnel"] {
		if err := measureTunnel(ctx, &t, o); err != nil {
			return fmt.Errorf("tunnel: %w", err)
		}
	}
	return nil
}

// table is what was measured.
type table struct{ rows []string }

func (t *table) row(what, measured, floor, limit string) {
	t.rows = append(t.rows, fmt.Sprintf("| %s | %s | %s | %s |", what, measured, floor, limit))
	say("%s: %s (floor %s; limit %s)", what, measured, floor, limit)
}

func (t *table) print() {
	if len(t.rows) > 0 {
		fmt.Printf("\n| what | measured | floor | limit |\n|---|---|---|---|\n%s\n", strings.Join(t.rows, "\n"))
	}
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "==> %s "+format+"\n", append([]any{time.Now().Format("15:04:05")}, args...)...)
}

// wait waits, or says that ctx ended.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
func millis(d time.Duration) string  { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }
func kilobytes(n float64) string     { return fmt.Sprintf("%.1f KB", n/1000) }

// ending stops what was started, the last first, and gathers what goes wrong.
type ending []func(context.Context) error

func (e *ending) add(stop func(context.Context) error) { *e = append(*e, stop) }

func (e ending) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer cancel()
	var err error
	for i := len(e) - 1; i >= 0; i-- {
		err = errors.Join(err, e[i](ctx))
	}
	return err
}
