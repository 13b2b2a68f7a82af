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

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/edged/cri"
	"github.com/edgecore-io/edgecore/test/bench/floor"
	"github.com/edgecore-io/edgecore/test/bench/process"
	"github.com/edgecore-io/edgecore/test/testenv/agent"
	"github.com/edgecore-io/edgecore/test/testenv/containerd"
	"github.com/edgecore-io/edgecore/test/testenv/images"
)

const (
	burst    = 30
	singles  = 20
	patience = 3 * time.Minute
)

// script ends at once when it is told to.
var script = []string{"sh", "-c", "trap 'exit 0' TERM; sleep 1000000 & wait"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	binary := flag.String("binary", "bin/edgecore", "the stripped `edgecore` to measure")
	idle := flag.Duration("idle", time.Minute, "how long to look at an idle agent")
	flag.Parse()
	if err := run(ctx, *binary, *idle); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

// bench is one run.
type bench struct {
	ctrd  *containerd.Instance
	agent *agent.Agent
	floor *floor.Client
	idle  time.Duration
	rows  []string
}

func run(ctx context.Context, binary string, idle time.Duration) (err error) {
	binary, err = filepath.Abs(binary)
	if err != nil {
		return err
	}
	b := &bench{idle: idle}
	dir, err := os.MkdirTemp("", "edgecore-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	say("starting a containerd")
	if b.ctrd, err = containerd.Start(ctx, containerd.Options{}); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, agent.Unmount(dir), b.ctrd.Stop(context.WithoutCancel(ctx)))
	}()
	if err := b.ctrd.LoadImages(ctx); err != nil {
		return err
	}
	client, err := b.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	b.floor = &floor.Client{CRI: client, CgroupParent: b.ctrd.CgroupRoot() + "/floor", LogDir: filepath.Join(dir, "floor"), Image: images.Demo, Command: script}
	if b.agent, err = agent.New(agent.Options{Binary: binary, Dir: dir, Endpoint: b.ctrd.Endpoint(), CgroupRoot: b.ctrd.CgroupRoot()}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.agent.Stop(context.WithoutCancel(ctx))) }()
	if err := b.measure(ctx, binary); err != nil {
		return err
	}
	fmt.Printf("\n| what | edgecore | floor | ratio | budget |\n|---|---|---|---|---|\n%s\n", strings.Join(b.rows, "\n"))
	return nil
}

func (b *bench) dial() (*cri.Client, error) { return b.ctrd.Dial() }

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "==> "+format+"\n", args...) }

func (b *bench) row(what, ours, floor, ratio, budget string) {
	b.rows = append(b.rows, fmt.Sprintf("| %s | %s | %s | %s | %s |", what, ours, floor, ratio, budget))
	say("%s: %s (floor %s, ratio %s)", what, ours, floor, ratio)
}

// latency adds a row of times beside the floor's.
func (b *bench) latency(what string, ours, floor []time.Duration, budget string) {
	o, f := median(ours), median(floor)
	b.row(what, seconds(o), seconds(f), fmt.Sprintf("%.2fx", float64(o)/float64(f)), budget)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.3f s", d.Seconds()) }

func median(list []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)/2]
}

func (b *bench) measure(ctx context.Context, binary string) error {
	info, err := os.Stat(binary)
	if err != nil {
		return err
	}
	b.row("binary, stripped", fmt.Sprintf("%.1f MB", float64(info.Size())/1e6), "", "", "<= 32 MB")
	if err := b.agent.Start(ctx); err != nil {
		return err
	}
	if err := b.footprint(ctx, 0, "<= 32 (8) MB", ""); err != nil {
		return err
	}
	if err := b.likeOurs(ctx); err != nil {
		return err
	}
	if err := b.singlePods(ctx); err != nil {
		return err
	}
	if err := b.bursts(ctx); err != nil {
		return err
	}
	if err := b.put(ctx, "idle", 10); err != nil {
		return err
	}
	if err := b.footprint(ctx, 10, "", ""); err != nil {
		return err
	}
	if err := b.clear(ctx); err != nil {
		return err
	}
	if err := b.put(ctx, "idle", burst); err != nil {
		return err
	}
	if err := b.footprint(ctx, burst, "<= 36 (13) MB", "<= 0.3"); err != nil {
		return err
	}
	return b.restart(ctx)
}

// likeOurs has the floor ask for what the agent asks for.
func (b *bench) likeOurs(ctx context.Context) error {
	if err := b.put(ctx, "like", 1); err != nil {
		return err
	}
	pods, err := b.agent.Pods(ctx)
	if err != nil {
		return err
	}
	for _, p := range pods {
		id := strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://")
		if b.floor.Like, err = floor.Of(ctx, b.floor.CRI, id, filepath.Join(b.floor.LogDir, "like")); err != nil {
			return err
		}
	}
	return b.clear(ctx)
}

// manifest is a pod like the floor's.
func manifest(name string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec:\n  terminationGracePeriodSeconds: 1\n  containers:\n"+
		"  - {name: main, image: %q, command: [%q, %q, %q]}\n", name, images.Demo, script[0], script[1], script[2])
}

// put runs pods and waits until all do.
func (b *bench) put(ctx context.Context, prefix string, n int) error {
	var docs []string
	for i := range n {
		docs = append(docs, manifest(fmt.Sprintf("%s-%d", prefix, i)))
	}
	if err := b.agent.WriteManifest("pods.yaml", strings.Join(docs, "---\n")); err != nil {
		return err
	}
	return b.until(ctx, func(pods map[string]*v1.Pod) bool { return len(pods) == n && allRun(pods) })
}

// clear removes all pods and waits until nothing of them is left.
func (b *bench) clear(ctx context.Context) error {
	if err := b.agent.RemoveManifest("pods.yaml"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return b.until(ctx, func(pods map[string]*v1.Pod) bool { return len(pods) == 0 })
}

func allRun(pods map[string]*v1.Pod) bool {
	for _, p := range pods {
		if p.Status.Phase != v1.PodRunning {
			return false
		}
	}
	return true
}

func (b *bench) until(ctx context.Context, done func(map[string]*v1.Pod) bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		pods, err := b.agent.Pods(ctx)
		if err != nil {
			return err
		}
		if done(pods) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the pods did not come to where they should: %w", ctx.Err())
		case <-time.After(pollEvery(len(pods))):
		}
	}
}

// pollEvery keeps the looking from costing what is looked at: a full list takes its time on both sides.
func pollEvery(pods int) time.Duration {
	return time.Duration(5+2*pods) * time.Millisecond
}

// singlePods makes and removes one pod after another, ours and the floor's in turn.
func (b *bench) singlePods(ctx context.Context) error {
	say("one pod, %d times", singles)
	var create, createFloor, remove, removeFloor []time.Duration
	for i := range singles + 1 {
		began := time.Now()
		pod, err := b.floor.Create(ctx, fmt.Sprintf("single-%d", i))
		if err != nil {
			return err
		}
		floorUp := time.Since(began)
		began = time.Now()
		if err := b.floor.Delete(ctx, pod, time.Second); err != nil {
			return err
		}
		floorGone := time.Since(began)
		began = time.Now()
		if err := b.put(ctx, fmt.Sprintf("single%d", i), 1); err != nil {
			return err
		}
		up := time.Since(began)
		began = time.Now()
		if err := b.clear(ctx); err != nil {
			return err
		}
		if i == 0 {
			continue // the first warms things up
		}
		create, createFloor = append(create, up), append(createFloor, floorUp)
		remove, removeFloor = append(remove, time.Since(began)), append(removeFloor, floorGone)
	}
	b.latency("create -> Running, one pod, median of 20", create, createFloor, "<= 1.10x")
	b.row("create -> Running, one pod, slowest of 20", seconds(slices.Max(create)), seconds(slices.Max(createFloor)), "", "")
	b.latency("delete -> gone, grace 1 s", remove, removeFloor, "<= floor + 0.1 s")
	return nil
}

// bursts makes 30 pods at once, three times each in turn.
func (b *bench) bursts(ctx context.Context) error {
	say("bursts of %d pods", burst)
	var ours, base []time.Duration
	for i := range 3 {
		began := time.Now()
		pods, err := b.floor.Burst(ctx, fmt.Sprintf("burst-%d", i), burst, burst)
		if err != nil {
			return err
		}
		base = append(base, time.Since(began))
		if err := b.floor.DeleteAll(ctx, pods, time.Second, burst); err != nil {
			return err
		}
		began = time.Now()
		if err := b.put(ctx, fmt.Sprintf("burst%d", i), burst); err != nil {
			return err
		}
		ours = append(ours, time.Since(began))
		if err := b.clear(ctx); err != nil {
			return err
		}
	}
	b.latency("burst of 30, last Running, median of 3", ours, base, "<= 1.10x")
	return nil
}

// restart loses power with 30 pods, and measures the way back with no cloud.
func (b *bench) restart(ctx context.Context) error {
	say("power off, and on again")
	if err := b.agent.Kill9(ctx); err != nil {
		return err
	}
	if err := errors.Join(b.ctrd.PowerOff(ctx), b.ctrd.PowerOn(ctx)); err != nil {
		return err
	}
	began := time.Now()
	if err := b.agent.Start(ctx); err != nil {
		return err
	}
	if err := b.until(ctx, func(pods map[string]*v1.Pod) bool { return len(pods) == burst && allFresh(pods, began) }); err != nil {
		return err
	}
	ours := time.Since(began)
	if err := b.clear(ctx); err != nil {
		return err
	}
	began = time.Now()
	// They go with the containerd.
	if _, err := b.floor.Burst(ctx, "restart", burst, burst); err != nil {
		return err
	}
	base := time.Since(began)
	b.latency("restart of 30 pods, no cloud, from the agent's start", []time.Duration{ours}, []time.Duration{base}, "<= 1.10x + 0.5 s")
	return nil
}

// allFresh tells whether every container was started after a time.
func allFresh(pods map[string]*v1.Pod, since time.Time) bool {
	for _, p := range pods {
		for _, c := range p.Status.ContainerStatuses {
			// Statuses are to the second.
			if c.State.Running == nil || c.State.Running.StartedAt.Add(time.Second).Before(since) {
				return false
			}
		}
	}
	return allRun(pods)
}

// footprint looks at the agent while nothing happens.
func (b *bench) footprint(ctx context.Context, pods int, memory, cpu string) error {
	say("%d pods, idle for %v", pods, b.idle)
	if !wait(ctx, 25*time.Second) { // reports and relists settle
		return ctx.Err()
	}
	pid := b.agent.PID()
	cpu0, io0, err := process.Usage(pid)
	if err != nil {
		return err
	}
	if !wait(ctx, b.idle) {
		return ctx.Err()
	}
	cpu1, io1, err := process.Usage(pid)
	if err != nil {
		return err
	}
	rss, anon, err := process.Memory(pid)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%d pods", pods)
	b.row("RSS (anon), "+name, fmt.Sprintf("%.1f (%.1f) MB", float64(rss)/1e6, float64(anon)/1e6), "", "", memory)
	b.row("CPU, "+name+" idle, % of a core", fmt.Sprintf("%.2f", 100*(cpu1-cpu0).Seconds()/b.idle.Seconds()), "", "", cpu)
	b.row("written in "+b.idle.String()+", "+name+" idle", fmt.Sprintf("%d bytes", io1-io0), "0", "", "0")
	return nil
}

func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
