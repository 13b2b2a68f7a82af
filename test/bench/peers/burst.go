package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/edgecore-io/edgecore/test/bench/floor"
	"github.com/edgecore-io/edgecore/test/bench/process"
	"github.com/edgecore-io/edgecore/test/bench/results"
)

// floorLevels are the numbers of pods that the floor works on at a time. Agents are compared with the fastest.
var floorLevels = []int{4, 8, 16, 30}

// deleteAtLeast is the smallest number of pods that the floor deletes at a time: with fewer it mostly waits for pods to
// end.
const deleteAtLeast = 16

// bursts measures many pods created at once, each subject in turn.
func (b *bench) bursts(ctx context.Context) error {
	base, err := b.like(ctx, b.of(results.EdgeCore), withToken)
	if err != nil {
		return err
	}
	for repeat := range b.repeats {
		for _, size := range b.sizes {
			var turns []func(context.Context) error
			for _, s := range b.sides {
				turns = append(turns, func(ctx context.Context) error { return b.burst(ctx, s, size) })
			}
			for _, level := range levelsFor(size) {
				name := fmt.Sprintf("burst-%d-%d-%d", repeat, size, level)
				turns = append(turns, func(ctx context.Context) error {
					t, err := floorBurst(ctx, base, name, size, level)
					if err != nil {
						return err
					}
					b.keep.Times(results.BurstFirst, results.Floor, t.made, t.first)
					b.keep.Times(results.BurstLast, results.Floor, t.made, t.last)
					b.keep.Times(results.BurstGone, results.Floor, t.removed, t.deletion.Stopped)
					return nil
				})
			}
			say("burst of %d pods, %d of %d", size, repeat+1, b.repeats)
			if err := inTurns(ctx, turns); err != nil {
				return err
			}
		}
	}
	return nil
}

// inTurns makes measurements in random order.
func inTurns(ctx context.Context, turns []func(context.Context) error) error {
	rand.Shuffle(len(turns), func(i, j int) { turns[i], turns[j] = turns[j], turns[i] })
	for _, turn := range turns {
		if err := gap(ctx); err != nil {
			return err
		}
		if err := turn(ctx); err != nil {
			return err
		}
	}
	return nil
}

// levelsFor returns the floor's levels for a burst of size pods, none of them above size.
func levelsFor(size int) []int {
	var levels []int
	for _, level := range floorLevels {
		levels = append(levels, min(level, size))
	}
	return slices.Compact(levels)
}

// spent is processor time.
type spent struct{ agent, cloud, machine time.Duration }

func (b *bench) spent(s *side) (t spent, err error) {
	if t.agent, _, err = process.Scheduled(s.pid()); err != nil {
		return t, err
	}
	if t.cloud, _, err = process.Scheduled(b.cloud.PID()); err != nil {
		return t, err
	}
	t.machine, err = process.Busy()
	return t, err
}

// settleTime is how long after a burst processor time still counts towards it.
const settleTime = time.Second

func (b *bench) burst(ctx context.Context, s *side, size int) error {
	before, err := b.spent(s)
	if err != nil {
		return err
	}
	g, up, err := b.create(ctx, s, withToken, size)
	if err != nil {
		return err
	}
	if err := pause(ctx, settleTime); err != nil {
		return err
	}
	gone, err := g.remove(ctx)
	if err != nil {
		return err
	}
	if err := g.removed(ctx, s); err != nil {
		return err
	}
	if err := pause(ctx, settleTime); err != nil {
		return err
	}
	after, err := b.spent(s)
	if err != nil {
		return err
	}
	at := results.Point{Pods: size}
	b.keep.Times(results.BurstFirst, s.subject, at, up[0])
	b.keep.Times(results.BurstLast, s.subject, at, up[len(up)-1])
	b.keep.Times(results.BurstGone, s.subject, at, gone[len(gone)-1])
	b.keep.Times(results.BurstCPU, s.subject, at, after.agent-before.agent)
	b.keep.Times(results.BurstMachine, s.subject, at, after.machine-before.machine)
	if s.subject == results.EdgeCore {
		b.keep.Times(results.BurstCloud, results.CloudCore, at, after.cloud-before.cloud)
	}
	say("%s: first %.2f s, last %.2f s, gone %.2f s", s.subject, up[0].Seconds(), up[len(up)-1].Seconds(),
		gone[len(gone)-1].Seconds())
	return nil
}

// floorTimes are those of a burst of the floor: from the first call to the first and the last pod that runs, and of the
// deletion. made and removed have the numbers of pods at a time.
type floorTimes struct {
	first, last   time.Duration
	deletion      floor.Deletion
	made, removed results.Point
}

// floorBurst creates and deletes pods with bare CRI calls, at most level at a time.
func floorBurst(ctx context.Context, client *floor.Client, name string, size, level int) (t floorTimes, err error) {
	var mu sync.Mutex
	var pods []*floor.Pod
	var up []time.Duration
	made, inner := errgroup.WithContext(ctx)
	made.SetLimit(level)
	began := time.Now()
	for i := range size {
		made.Go(func() error {
			p, err := client.Create(inner, fmt.Sprintf("%s-%d", name, i))
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			pods, up = append(pods, p), append(up, time.Since(began))
			return nil
		})
	}
	if err := made.Wait(); err != nil {
		return t, err
	}
	if err := pause(ctx, settleTime); err != nil {
		return t, err
	}
	deleting := min(max(level, deleteAtLeast), size)
	if level < deleteAtLeast {
		deleting = size
	}
	t = floorTimes{
		first:   up[0],
		last:    up[len(up)-1],
		made:    results.Point{Pods: size, Parallel: level},
		removed: results.Point{Pods: size, Parallel: deleting},
	}
	t.deletion, err = client.DeleteAll(ctx, pods, grace, deleting)
	say("floor, %d at a time: first %.2f s, last %.2f s, gone %.2f s", level, t.first.Seconds(), t.last.Seconds(),
		t.deletion.Stopped.Seconds())
	return t, err
}
