package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/edgecore-io/edgecore/test/bench/floor"
)

// atOnce are the numbers of pods that the floor of a burst works on at a time. The fastest one is the floor: more pods
// at a time compete for the processors, and fewer leave them idle.
var atOnce = []int{4, 8, 16, burst}

// floors are the times of the floor's bursts, by the number of pods at a time.
type floors map[int]*lives

func newFloors() floors {
	f := floors{}
	for _, n := range atOnce {
		f[n] = &lives{}
	}
	return f
}

// round makes and deletes one burst of the floor for each number of pods at a time. down is when the pods are gone.
func (f floors) round(
	ctx context.Context, client *floor.Client, prefix string, down func(floor.Deletion) time.Duration,
) error {
	for _, n := range atOnce {
		if err := rest(ctx); err != nil {
			return err
		}
		began := time.Now()
		pods, err := client.Burst(ctx, fmt.Sprintf("%s-%d", prefix, n), burst, n)
		if err != nil {
			return err
		}
		up := time.Since(began)
		if err := rest(ctx); err != nil {
			return err
		}
		deleted, err := client.DeleteAll(ctx, pods, time.Second, n)
		if err != nil {
			return err
		}
		f[n].add(up, down(deleted))
	}
	return rest(ctx)
}

// best returns the number of pods at a time with the lowest median, and its times.
func (f floors) best(of func(*lives) []time.Duration) (int, []time.Duration) {
	n := slices.MinFunc(atOnce, func(a, b int) int { return int(median(of(f[a])) - median(of(f[b]))) })
	return n, of(f[n])
}

// String lists the medians, such as "4 at a time: 2.970 s, 2.900 s".
func (f floors) String() string {
	var list []string
	for _, n := range atOnce {
		text := fmt.Sprintf("%d at a time: %s", n, seconds(median(f[n].up)))
		if down := median(f[n].down); down > 0 {
			text += ", " + seconds(down)
		}
		list = append(list, text)
	}
	return strings.Join(list, "; ")
}

// fullBursts measures bursts of full pods, sent as a cloud sends them, in turn with the floor's.
func (b *bench) fullBursts(ctx context.Context, d *device, like *floor.Client) error {
	say("bursts of %d such pods", burst)
	var ours lives
	var first []time.Duration
	floors := newFloors()
	stopped := func(d floor.Deletion) time.Duration { return d.Stopped }
	for round := range 3 {
		if err := floors.round(ctx, like, fmt.Sprintf("full-burst-%d", round), stopped); err != nil {
			return err
		}
		one, up, down, err := d.burst(ctx, fmt.Sprintf("burst-%d", round))
		if err != nil {
			return err
		}
		first = append(first, one)
		ours.add(up, down)
	}
	ups := func(l *lives) []time.Duration { return l.up }
	downs := func(l *lives) []time.Duration { return l.down }
	n, base := floors.best(ups)
	b.row("burst of 30 such pods, first Running told, median of 3", seconds(median(first)), "", "", "<= 0.6 s")
	b.latency(fmt.Sprintf("the same, last Running told (floor: %d at a time)", n), ours.up, base, "<= 1.10x + 0.5 s")
	n, base = floors.best(downs)
	b.latency(fmt.Sprintf("all 30 deleted (floor: %d at a time)", n), ours.down, base, "<= 1.15x + grace used")
	b.row("floor of bursts, last Running and all deleted", "", floors.String(), "", "")
	return nil
}

// burst creates 30 pods at once and deletes them. It returns when the cloud received that the first pod ran, that the
// last one ran, and that all were gone.
func (d *device) burst(ctx context.Context, prefix string) (first, up, down time.Duration, err error) {
	names := make([]string, burst)
	began := time.Now()
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", prefix, i)
		if _, err := d.cloud.Put(fullPod(names[i])); err != nil {
			return 0, 0, 0, err
		}
	}
	runs := func(name string) bool { return d.cloud.Status(podKey(name)).Phase == v1.PodRunning }
	one := func() bool { return slices.ContainsFunc(names, runs) }
	if err := d.until(ctx, "a pod of the burst runs", one); err != nil {
		return 0, 0, 0, err
	}
	first = time.Since(began)
	// Each pod is checked only after the one before it runs.
	for _, name := range names {
		if err := d.until(ctx, name+" runs", func() bool { return runs(name) }); err != nil {
			return 0, 0, 0, err
		}
	}
	up = time.Since(began)
	if err := d.until(ctx, "all is acknowledged", func() bool { return d.cloud.AllAcked() == nil }); err != nil {
		return 0, 0, 0, err
	}
	if err := rest(ctx); err != nil {
		return 0, 0, 0, err
	}
	began = time.Now()
	for _, name := range names {
		if err := d.cloud.Delete(podKey(name)); err != nil {
			return 0, 0, 0, err
		}
	}
	for _, name := range names {
		gone := func() bool { return d.cloud.Journal()[podKey(name)].Deleted }
		if err := d.until(ctx, name+" is gone", gone); err != nil {
			return 0, 0, 0, err
		}
	}
	down = time.Since(began)
	return first, up, down, floor.UntilRemoved(ctx, d.runtime, names)
}
