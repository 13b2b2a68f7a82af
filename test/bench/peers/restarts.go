package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/bench/floor"
	"github.com/edgecore-io/edgecore/test/bench/results"
)

const (
	// restartedPods is how many pods come back after a power cut.
	restartedPods = 30
	// askEvery is how often somebody asks the agent for its pods while they start again.
	askEvery = 100 * time.Millisecond
)

// restarts measures how pods come back with no cloud after a power cut, in turn with the floor's.
func (a *alone) restarts(ctx context.Context) error {
	base, err := a.likeStatic(ctx)
	if err != nil {
		return err
	}
	for i := range a.repeats {
		say("power off with %d pods, and on again, %d of %d", restartedPods, i+1, a.repeats)
		if err := a.put(ctx, "restart", restartedPods, 0); err != nil {
			return err
		}
		first, last, err := a.restart(ctx)
		if err != nil {
			return err
		}
		a.keep.Times(results.RestartFirst, results.EdgeCore, results.Point{Pods: restartedPods}, first)
		a.keep.Times(results.RestartLast, results.EdgeCore, results.Point{Pods: restartedPods}, last)
		if err := a.clear(ctx, 0); err != nil {
			return err
		}
		if err := a.floorRestarts(ctx, base, fmt.Sprintf("restart-%d", i)); err != nil {
			return err
		}
	}
	return nil
}

// powerCut cuts the power of the runtime and of all pods, and brings the runtime back.
func (a *alone) powerCut(ctx context.Context) error {
	if err := errors.Join(a.ctrd.PowerOff(ctx), a.ctrd.PowerOn(ctx)); err != nil {
		return err
	}
	return gap(ctx)
}

// restart cuts the power, starts the agent, and returns how long it took until the first and all of its pods ran again.
// Meanwhile somebody asks for the pods, which costs what a user would pay for it.
func (a *alone) restart(ctx context.Context) (first, all time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := a.agent.Kill9(ctx); err != nil {
		return 0, 0, err
	}
	if err := a.powerCut(ctx); err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := a.agent.Start(ctx); err != nil {
		return 0, 0, err
	}
	for {
		pods, err := a.agent.Pods(ctx)
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
		if fresh == restartedPods {
			return first, time.Since(began), nil
		}
		if err := pause(ctx, askEvery); err != nil {
			return 0, 0, fmt.Errorf("%d of %d pods ran again: %w", fresh, restartedPods, err)
		}
	}
}

// floorRestarts measures the floor, with each number of pods at a time.
func (a *alone) floorRestarts(ctx context.Context, base *floor.Client, prefix string) error {
	levels := levelsFor(restartedPods)
	pods, err := base.Burst(ctx, prefix, restartedPods, levels[0])
	if err != nil {
		return err
	}
	for _, level := range levels {
		if err := a.powerCut(ctx); err != nil {
			return err
		}
		began := time.Now()
		again, err := base.Again(ctx, pods, level)
		if err != nil {
			return err
		}
		a.keep.Times(results.RestartLast, results.Floor, results.Point{Pods: restartedPods, Parallel: level},
			time.Since(began))
		for _, dead := range pods {
			if err := base.Remove(ctx, dead); err != nil {
				return err
			}
		}
		pods = again
	}
	_, err = base.DeleteAll(ctx, pods, grace, levels[0])
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
