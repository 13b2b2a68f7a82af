package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
)

// askEvery is how often somebody asks the agent for its pods while they start again.
const askEvery = 100 * time.Millisecond

// restarts measures how 30 pods come back with no cloud after a power cut, in turn with the floor's.
func (b *bench) restarts(ctx context.Context) (err error) {
	if err := b.startAgent(ctx, "restarts"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.agent.Stop(context.WithoutCancel(ctx))) }()
	if err := b.likeOurs(ctx); err != nil {
		return err
	}
	say("power off with 30 pods, and on again, %d times", b.cuts)
	var first, ours []time.Duration
	floors := newFloors()
	for i := range b.cuts {
		if err := b.put(ctx, "restart", burst, 0); err != nil {
			return err
		}
		one, all, err := b.restart(ctx)
		if err != nil {
			return err
		}
		first, ours = append(first, one), append(ours, all)
		if err := b.clear(ctx, 0); err != nil {
			return err
		}
		if err := b.floorRestarts(ctx, fmt.Sprintf("restart-%d", i), floors); err != nil {
			return err
		}
	}
	n, base := floors.best(func(l *lives) []time.Duration { return l.up })
	b.row(fmt.Sprintf("restart of 30 pods, no cloud, from the agent's start: first Running, median of %d", b.cuts),
		seconds(median(first)), "", "", "")
	b.latency(fmt.Sprintf("the same: last Running (floor: %d at a time)", n), ours, base, "<= 1.10x + 0.3 s")
	b.row("floor of restarts, last Running", "", floors.String(), "", "")
	return nil
}

// powerCut cuts the power of the runtime and of all pods, and brings the runtime back.
func (b *bench) powerCut(ctx context.Context) error {
	if err := errors.Join(b.ctrd.PowerOff(ctx), b.ctrd.PowerOn(ctx)); err != nil {
		return err
	}
	return rest(ctx)
}

// restart cuts the power, starts the agent, and returns how long it took until the first and all of its pods ran again.
// Meanwhile somebody asks for the pods, which costs what a user would pay for it.
func (b *bench) restart(ctx context.Context) (first, all time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := b.agent.Kill9(ctx); err != nil {
		return 0, 0, err
	}
	if err := b.powerCut(ctx); err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := b.agent.Start(ctx); err != nil {
		return 0, 0, err
	}
	for {
		pods, err := b.agent.Pods(ctx)
		if err != nil {
			return 0, 0, err
		}
		fresh := 0
		for _, p := range pods {
			if runsSince(p, began) {
				fresh++
			}
		}
		if fresh > 0 && first == 0 {
			first = time.Since(began)
		}
		if fresh == burst {
			return first, time.Since(began), nil
		}
		if !wait(ctx, askEvery) {
			return 0, 0, fmt.Errorf("%d of %d pods ran again: %w", fresh, burst, ctx.Err())
		}
	}
}

// floorRestarts measures the floor, with each number of pods at a time.
func (b *bench) floorRestarts(ctx context.Context, prefix string, floors floors) error {
	pods, err := b.floor.Burst(ctx, prefix, burst, atOnce[0])
	if err != nil {
		return err
	}
	for _, n := range atOnce {
		if err := b.powerCut(ctx); err != nil {
			return err
		}
		began := time.Now()
		again, err := b.floor.Again(ctx, pods, n)
		if err != nil {
			return err
		}
		floors[n].add(time.Since(began), 0)
		for _, dead := range pods {
			if err := b.floor.Remove(ctx, dead); err != nil {
				return err
			}
		}
		pods = again
	}
	_, err = b.floor.DeleteAll(ctx, pods, time.Second, atOnce[0])
	return err
}

// runsSince reports whether every container of a pod was started after a time, and runs.
func runsSince(p *v1.Pod, since time.Time) bool {
	for _, c := range p.Status.ContainerStatuses {
		// Statuses are to the second.
		if c.State.Running == nil || c.State.Running.StartedAt.Add(time.Second).Before(since) {
			return false
		}
	}
	return p.Status.Phase == v1.PodRunning
}
