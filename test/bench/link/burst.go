package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/edgecore-io/edgecore/test/bench/floor"
	"github.com/edgecore-io/edgecore/test/bench/load"
	"github.com/edgecore-io/edgecore/test/bench/process"
)

const (
	// burstPods is how many pods are created at once, burstRounds how often.
	burstPods   = 30
	burstRounds = 3
	// burstProfile is how many seconds of a burst a profile covers.
	burstProfile = 12
)

// floorLevels are the numbers of pods that the floor creates at a time; the fastest level counts.
var floorLevels = []int{4, 8, 16, burstPods}

// burstTimes are those of one burst: from the first create to the first and last pod that runs, and from the first
// delete to the last pod that is gone. writes are the changes of the pods in the API until all ran, cpu is the
// processor time of edgecore and cloudcore, and sent and received are the node's messages, those of the last events
// included.
type burstTimes struct {
	first, last, gone, cpu time.Duration
	writes, sent, received int
}

// burst measures bursts of 30 default pods, each with a token, in turn with bursts of the floor.
func (e *edgeSite) burst(ctx context.Context) error {
	say("%d pods at once, %d times", burstPods, burstRounds)
	var first, last, gone, cpu, floorUp, floorDown, floorCPU []time.Duration
	writes, sent, received := 0, 0, 0
	for round := range burstRounds + 1 {
		least, err := e.floorBurst(ctx, round)
		if err != nil {
			return fmt.Errorf("floor: %w", err)
		}
		var b burstTimes
		if err := e.profiled(ctx, fmt.Sprintf("burst-%d", round), burstProfile, func() (err error) {
			b, err = e.timedBurst(ctx, round)
			return err
		}); err != nil {
			return err
		}
		say("burst: first %s, last %s, gone %s, CPU %s; floor %s and %s; %d messages sent, %d received",
			seconds(b.first), seconds(b.last), seconds(b.gone), seconds(b.cpu), seconds(least.up), seconds(least.down),
			b.sent, b.received)
		if round == 0 { // it warms things up
			continue
		}
		first, last, gone = append(first, b.first), append(last, b.last), append(gone, b.gone)
		cpu = append(cpu, b.cpu/burstPods)
		floorUp, floorDown = append(floorUp, least.up), append(floorDown, least.down)
		floorCPU = append(floorCPU, least.cpu/burstPods)
		writes, sent, received = writes+b.writes, sent+b.sent, received+b.received
	}
	if err := e.keepAllocs(ctx); err != nil {
		return err
	}
	base, baseDown := load.Median(floorUp), load.Median(floorDown)
	row := func(what string, ours []time.Duration, floor time.Duration, limit string) {
		m := load.Median(ours)
		measured := fmt.Sprintf("%s (%.2fx; %s to %s)", seconds(m), float64(m)/float64(floor),
			seconds(slices.Min(ours)), seconds(slices.Max(ours)))
		e.t.row(what, measured, seconds(floor), limit)
	}
	row("30 default pods at once (API) -> the last Running (API), median of 3", last, base, "<= 1.10x floor + 0.5 s")
	row("the same, the first Running", first, base, "<= 0.6 s")
	row("all 30 deleted (API) -> gone (API), grace 1 s", gone, baseDown, "<= 1.15x floor + grace")
	e.t.row("changes of a pod in the API until all 30 run", fmt.Sprintf("%.1f",
		float64(writes)/(burstPods*burstRounds)), "1", "<= 2")
	e.t.row("messages of a pod's life in a burst, sent by the node and received", fmt.Sprintf("%.1f and %.1f",
		float64(sent)/(burstPods*burstRounds), float64(received)/(burstPods*burstRounds)), "", "")
	e.t.row("processor time of a pod's life in a burst, edgecore and cloudcore, median of 3",
		fmt.Sprintf("%s (%s to %s)", millis(load.Median(cpu)), millis(slices.Min(cpu)), millis(slices.Max(cpu))),
		millis(load.Median(floorCPU))+" for the calls alone", "<= 20 ms")
	return nil
}

// timedBurst is a burst with its processor time.
func (e *edgeSite) timedBurst(ctx context.Context, round int) (b burstTimes, err error) {
	cpu := func() (sum time.Duration, err error) {
		for _, pid := range []int{e.edge.PID(), e.cloud.PID()} {
			used, _, err := process.Scheduled(pid)
			if err != nil {
				return 0, err
			}
			sum += used
		}
		return sum, nil
	}
	sent, received, err := e.settledMessages(ctx)
	if err != nil {
		return b, err
	}
	before, err := cpu()
	if err != nil {
		return b, err
	}
	if b, err = e.podBurst(ctx, round); err != nil {
		return b, err
	}
	after, err := cpu()
	if err != nil {
		return b, err
	}
	b.cpu = after - before
	b.sent, b.received, err = e.settledMessages(ctx)
	b.sent, b.received = b.sent-sent, b.received-received
	return b, err
}

// floorTimes are those of the floor: from the first call to the last pod that runs, and to the last that is gone; cpu
// is the processor time that the calls take in this process. Each is of the level at which it is least.
type floorTimes struct{ up, down, cpu time.Duration }

// floorBurst creates and deletes as many pods with bare CRI calls at each level.
func (e *edgeSite) floorBurst(ctx context.Context, round int) (least floorTimes, err error) {
	for i, level := range floorLevels {
		t, err := e.floorLevel(ctx, fmt.Sprintf("burst-%d-%d", round, level), level)
		if err != nil {
			return least, err
		}
		if i == 0 {
			least = t
		}
		least = floorTimes{min(least.up, t.up), min(least.down, t.down), min(least.cpu, t.cpu)}
	}
	return least, nil
}

// floorLevel does so with some pods at a time, whose names begin with name.
func (e *edgeSite) floorLevel(ctx context.Context, name string, level int) (t floorTimes, err error) {
	before, _, err := process.Scheduled(os.Getpid())
	if err != nil {
		return t, err
	}
	pods := make([]*floor.Pod, burstPods)
	began := time.Now()
	err = e.atOnce(ctx, level, func(ctx context.Context, i int) (err error) {
		pods[i], err = e.floor.Create(ctx, fmt.Sprintf("%s-%d", name, i))
		return err
	})
	t.up = time.Since(began)
	if err != nil {
		return t, err
	}
	deleted, err := e.floor.DeleteAll(ctx, pods, time.Second, level)
	if err != nil {
		return t, err
	}
	t.down = deleted.Stopped
	after, _, err := process.Scheduled(os.Getpid())
	t.cpu = after - before
	return t, err
}

// atOnce calls do for each pod of a burst, some at a time.
func (e *edgeSite) atOnce(ctx context.Context, level int, do func(context.Context, int) error) error {
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(level)
	for i := range burstPods {
		all.Go(func() error { return do(ctx, i) })
	}
	return all.Wait()
}

// podBurst creates and deletes pods, and returns when a watching client saw each state.
func (e *edgeSite) podBurst(ctx context.Context, round int) (b burstTimes, err error) {
	ctx, cancel := context.WithTimeout(ctx, edgeTime)
	defer cancel()
	pods := e.api.CoreV1().Pods("default")
	label := fmt.Sprintf("burst=%d", round)
	w, err := pods.Watch(ctx, metav1.ListOptions{LabelSelector: label})
	if err != nil {
		return b, err
	}
	defer w.Stop()
	names := make([]string, burstPods)
	for i := range names {
		names[i] = fmt.Sprintf("burst-%d-%d", round, i)
	}
	began := time.Now()
	var running sync.WaitGroup
	defer running.Wait()
	created := make(chan error, 1)
	running.Go(func() {
		created <- e.atOnce(ctx, burstPods, func(ctx context.Context, i int) error {
			pod := demo(names[i])
			pod.Labels = map[string]string{"burst": fmt.Sprint(round)}
			pod.Spec.AutomountServiceAccountToken = nil // the API server adds the token's volume
			_, err := pods.Create(ctx, pod, metav1.CreateOptions{})
			return err
		})
	})
	ran := map[string]bool{}
	err = await(ctx, w, func(event watch.Event, p *v1.Pod) bool {
		if event.Type == watch.Modified {
			b.writes++
		}
		if p.Status.Phase == v1.PodRunning {
			if ran[p.Name] = true; b.first == 0 {
				b.first = time.Since(began)
			}
		}
		return len(ran) == burstPods
	})
	b.last = time.Since(began)
	if err == nil {
		err = <-created
	}
	if err != nil {
		return b, fmt.Errorf("%d of %d pods run: %w", len(ran), burstPods, err)
	}
	if err := e.endBurst(ctx, w, label, &b); err != nil {
		return b, err
	}
	return b, floor.UntilRemoved(ctx, e.floor.CRI, names)
}

// endBurst deletes the pods of a burst, and waits until all are gone.
func (e *edgeSite) endBurst(ctx context.Context, w watch.Interface, label string, b *burstTimes) error {
	began := time.Now()
	err := e.api.CoreV1().Pods("default").DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: label})
	if err != nil {
		return err
	}
	gone := 0
	err = await(ctx, w, func(event watch.Event, p *v1.Pod) bool {
		if event.Type == watch.Deleted {
			gone++
		}
		return gone == burstPods
	})
	b.gone = time.Since(began)
	if err != nil {
		return fmt.Errorf("%d of %d pods are gone: %w", gone, burstPods, err)
	}
	return nil
}

// await reads a watch until an event is the one.
func await(ctx context.Context, w watch.Interface, is func(watch.Event, *v1.Pod) bool) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event, ok := <-w.ResultChan():
			if !ok {
				return errors.New("the watch ended")
			}
			if p, isPod := event.Object.(*v1.Pod); isPod && is(event, p) {
				return nil
			}
		}
	}
}
